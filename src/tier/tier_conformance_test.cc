// What every tier must do. A new tier adds a TierWorld to the list at the end.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "env/memory_env.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"
#include "tier/tier.h"
#include "tier/tier_test_pages.h"

namespace headrace {
namespace {

constexpr std::uint32_t limit_pages = 12;
constexpr std::uint32_t queue_depth = 8;

/// A tier for small_shape with room for `limit_pages`, and the world that it lives in.
class TierWorld {
 public:
  virtual ~TierWorld() = default;
  virtual Tier& tier() = 0;
  /// How the tier keeps pages.
  virtual const Codec& codec() { return raw_codec(); }
};

struct NamedWorld {
  const char* name;
  std::function<std::unique_ptr<TierWorld>()> make;
  const char* codec = "raw";
};

class TierConformance : public testing::TestWithParam<NamedWorld> {
 protected:
  std::unique_ptr<TierWorld> world_ = GetParam().make();
  Tier& tier_ = world_->tier();
  TierClient client_{tier_};
};

TEST_P(TierConformance, APageComesBackBitForBit) {
  for (std::uint32_t i = 0; i < limit_pages; ++i) {
    EXPECT_EQ(outcome(client_.put(test_page(i))), "ok");
  }
  tier_.drop_cache();
  for (std::uint32_t i = 0; i < limit_pages; ++i) {
    EXPECT_EQ(outcome(client_.get(test_page(i))), "ok");
    EXPECT_EQ(outcome(client_.get(test_page(i))), "ok");  // a get takes nothing away
  }
  const TierStats stats = tier_.stats();
  EXPECT_EQ(stats.pages, limit_pages);
  EXPECT_EQ(stats.puts, limit_pages);
  EXPECT_EQ(stats.gets, 2 * limit_pages);
  EXPECT_EQ(stats.damaged, 0U);
}

TEST_P(TierConformance, AnUnknownPageIsNotFound) {
  EXPECT_EQ(outcome(client_.get(test_page(1))), "not_found");
  ASSERT_TRUE(client_.put(test_page(1)).ok());
  EXPECT_EQ(outcome(client_.get(test_page(2))), "not_found");  // the same block, another layer
  tier_.erase(test_page(2).identity.key);                      // ignored
  EXPECT_EQ(outcome(client_.get(test_page(1))), "ok");
}

TEST_P(TierConformance, APageUnderTheRightKeyButOfAnotherModelIsRefusedAndDropped) {
  const TestPage page = test_page(1);
  ASSERT_TRUE(client_.put(page).ok());
  TestPage other = page;
  other.identity.model.low ^= 1;
  EXPECT_EQ(outcome(client_.get(other)), "corrupt");
  EXPECT_EQ(outcome(client_.get(page)), "not_found");
  EXPECT_EQ(tier_.stats().damaged, 1U);
}

TEST_P(TierConformance, APageWithAnotherChecksumIsRefused) {
  TestPage page = test_page(1);
  ASSERT_TRUE(client_.put(page).ok());
  page.checksum.high ^= 1;
  EXPECT_EQ(outcome(client_.get(page)), "corrupt");
}

TEST_P(TierConformance, APutOfAStoredPageWritesNothingAndOneEraseDropsIt) {
  const TestPage page = test_page(1);
  for (int put = 0; put < 3; ++put) ASSERT_TRUE(client_.put(page).ok());
  EXPECT_EQ(tier_.stats().puts, 1U);
  EXPECT_EQ(tier_.stats().pages, 1U);
  EXPECT_TRUE(tier_.has(page.identity.key));
  tier_.erase(page.identity.key);
  EXPECT_FALSE(tier_.has(page.identity.key));
  EXPECT_EQ(outcome(client_.get(page)), "not_found");
  EXPECT_EQ(tier_.stats().pages, 0U);
}

TEST_P(TierConformance, APutOfAPageThatIsBeingWrittenEndsWithIt) {
  const TestPage page = test_page(1);
  const auto first = tier_.submit_put(page.identity, page.checksum, page.bytes);
  const auto second = tier_.submit_put(page.identity, page.checksum, page.bytes);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(tier_.has(page.identity.key));
  EXPECT_EQ(outcome(client_.finish(*first)), "ok");
  EXPECT_EQ(outcome(client_.finish(*second)), "ok");
  EXPECT_EQ(tier_.stats().puts, 1U);
}

TEST_P(TierConformance, APageErasedWhileItIsWrittenDoesNotStay) {
  const TestPage page = test_page(1);
  const auto put = tier_.submit_put(page.identity, page.checksum, page.bytes);
  ASSERT_TRUE(put.ok());
  tier_.erase(page.identity.key);
  EXPECT_FALSE(tier_.has(page.identity.key));
  const auto again = tier_.submit_put(page.identity, page.checksum, page.bytes);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(outcome(client_.finish(*put)), "ok");
  EXPECT_EQ(outcome(client_.finish(*again)), "ok");
  EXPECT_EQ(outcome(client_.get(page)), "ok");
}

TEST_P(TierConformance, APageWithFewTokensComesBackWithZerosBehindThem) {
  for (std::uint32_t held = 1; held <= small_shape.tokens; ++held) {
    const TestPage page = tail_page(held, held);
    EXPECT_EQ(outcome(client_.put(page)), "ok");
    EXPECT_EQ(outcome(client_.get(page)), "ok");
    TestPage other = page;
    other.identity.tokens_held = held % small_shape.tokens + 1;
    EXPECT_EQ(outcome(client_.get(other)), "corrupt");
    EXPECT_EQ(outcome(client_.get(page)), "not_found");
  }
}

TEST_P(TierConformance, AnEncodedPageComesBackDecoded) {
  for (std::uint32_t held = 1; held <= small_shape.tokens; ++held) {
    const TestPage page = tail_page(held, held);
    const Codec& codec = **find_codec(std::string_view(GetParam().codec));
    std::vector<std::byte> encoded(codec.encoded_bytes_max(small_shape));
    encoded.resize(codec.encode({.shape = small_shape, .tokens_held = held}, page.bytes, encoded));
    const auto put = tier_.submit_put_encoded(page.identity, page.checksum, encoded);
    ASSERT_TRUE(put.ok());
    EXPECT_EQ(outcome(client_.get(page)), "ok");  // before its put has completed
    EXPECT_EQ(outcome(client_.finish(*put)), "ok");
    EXPECT_EQ(outcome(client_.get(page)), "ok");
    tier_.erase(page.identity.key);
  }
}

TEST_P(TierConformance, TheLimitHoldsAndErasingMakesRoom) {
  for (std::uint32_t i = 0; i < limit_pages; ++i) ASSERT_TRUE(client_.put(test_page(i)).ok());
  EXPECT_EQ(outcome(client_.put(test_page(90))), "out_of_budget");
  EXPECT_EQ(outcome(client_.get(test_page(90))), "not_found");
  EXPECT_EQ(outcome(client_.put(test_page(3))), "ok");  // takes no room
  tier_.erase(test_page(7).identity.key);
  EXPECT_EQ(outcome(client_.put(test_page(90))), "ok");
  EXPECT_EQ(outcome(client_.get(test_page(90))), "ok");
  EXPECT_LE(tier_.stats().bytes_peak, disk_tier_limit_bytes(small_shape, limit_pages));
}

TEST_P(TierConformance, AFullQueueIsAValueAndEveryTicketCompletesOnce) {
  std::vector<TestPage> pages;
  for (std::uint32_t i = 0; i <= queue_depth; ++i) pages.push_back(test_page(i));
  std::set<TierTicket> tickets;
  const auto submit = [&](const TestPage& page) {
    return tier_.submit_put(page.identity, page.checksum, page.bytes);
  };
  for (std::uint32_t i = 0; i < queue_depth; ++i) {
    const auto ticket = submit(pages[i]);
    ASSERT_TRUE(ticket.ok());
    EXPECT_TRUE(tickets.insert(*ticket).second);
  }
  const auto refused = submit(pages[queue_depth]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_budget);

  EXPECT_EQ(tier_.poll({}), 0U);
  TierCompletion completion;
  while (!tickets.empty()) {
    tier_.wait();
    ASSERT_EQ(tier_.poll({&completion, 1}), 1U);
    EXPECT_TRUE(completion.result.ok());
    EXPECT_EQ(tickets.erase(completion.ticket), 1U);
  }
  EXPECT_EQ(tier_.poll({&completion, 1}), 0U);
  EXPECT_EQ(outcome(client_.put(pages[queue_depth])), "ok");
}

TEST_P(TierConformance, APageCanBeReadBeforeItsPutHasCompleted) {
  const TestPage page = test_page(5);
  std::vector<std::byte> target = empty_target();
  const auto put = tier_.submit_put(page.identity, page.checksum, page.bytes);
  const auto get = tier_.submit_get(page.identity, page.checksum, target);
  ASSERT_TRUE(put.ok() && get.ok());
  EXPECT_EQ(outcome(client_.finish(*get)), "ok");
  EXPECT_EQ(target, page.bytes);
  EXPECT_EQ(outcome(client_.finish(*put)), "ok");
}

TEST_P(TierConformance, ItsMemoryIsFixedWhenItIsOpened) {
  const std::uint64_t before = tier_.memory_bytes();
  EXPECT_GT(before, 0U);
  for (std::uint32_t i = 0; i < limit_pages; ++i) ASSERT_TRUE(client_.put(test_page(i)).ok());
  EXPECT_EQ(tier_.memory_bytes(), before);
}

// Batches of random operations against a set. Within a batch everything is in flight at once and a
// key is put at most once, so that the model need not know which of two puts met a full tier.
TEST_P(TierConformance, RandomUseAgreesWithAPlainModel) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<TestPage> pages;
  for (std::uint32_t i = 0; i < 2 * limit_pages; ++i) pages.push_back(test_page(i));
  std::set<std::size_t> stored;  // page numbers

  struct Flight {
    std::size_t page;
    bool is_put;
    bool may_be_full;
    std::vector<std::byte> target;
  };
  for (int batch = 0; batch < 400; ++batch) {
    std::map<TierTicket, Flight> flights;
    std::set<std::size_t> put_now;
    const bool full_at_start = stored.size() + queue_depth > limit_pages;
    for (std::uint32_t i = 0; i < queue_depth; ++i) {
      const std::size_t number = random() % pages.size();
      const TestPage& page = pages[number];
      const auto action = random() % 5;
      if (action < 2 && put_now.insert(number).second) {
        const auto ticket = tier_.submit_put(page.identity, page.checksum, page.bytes);
        ASSERT_TRUE(ticket.ok());
        const bool may_be_full = full_at_start && !stored.contains(number);
        flights[*ticket] = {number, true, may_be_full, {}};
        stored.insert(number);
      } else if (action < 4) {
        std::vector<std::byte> target = empty_target();
        const auto ticket = tier_.submit_get(page.identity, page.checksum, target);
        if (ticket.ok()) {
          ASSERT_TRUE(stored.contains(number));
          flights[*ticket] = {number, false, false, std::move(target)};
        } else {
          EXPECT_EQ(ticket.error().code, ErrorCode::not_found);
          ASSERT_TRUE(!stored.contains(number) || put_now.contains(number));
        }
      } else {
        tier_.erase(page.identity.key);
        stored.erase(number);
      }
    }
    for (auto& [ticket, flight] : flights) {
      const auto result = client_.finish(ticket);
      if (!result.ok()) {
        ASSERT_TRUE(flight.may_be_full) << result.error().message;
        ASSERT_EQ(result.error().code, ErrorCode::out_of_budget);
        stored.erase(flight.page);
      } else if (!flight.is_put) {
        ASSERT_EQ(flight.target, pages[flight.page].bytes);
      }
    }
    ASSERT_EQ(client_.untaken(), 0U);
    ASSERT_EQ(tier_.stats().pages, stored.size());
    ASSERT_LE(stored.size(), limit_pages);
  }
  for (const std::size_t number : stored) {
    EXPECT_EQ(outcome(client_.get(pages[number])), "ok");
  }
}

class DiskTierWorld final : public TierWorld {
 public:
  DiskTierWorld(std::unique_ptr<MemoryEnv> memory, std::uint32_t io_threads)
      : memory_(std::move(memory)), env_(memory_ != nullptr ? *memory_ : posix_env()) {
    auto tier =
        open_disk_tier(env_, {.directory = directory_,
                              .limit_bytes = disk_tier_limit_bytes(small_shape, limit_pages),
                              .max_pages = limit_pages,
                              .shape = small_shape,
                              .io_threads = io_threads,
                              .queue_depth = queue_depth});
    EXPECT_TRUE(tier.ok()) << tier.error().message;
    tier_ = std::move(tier).value();
  }
  ~DiskTierWorld() override {
    tier_.reset();
    EXPECT_FALSE(env_.exists(directory_)) << "something was left behind";
  }
  Tier& tier() override { return *tier_; }

 private:
  std::unique_ptr<MemoryEnv> memory_;
  Env& env_;
  std::string directory_ =
      env_.temporary_directory() + "/headrace-test-" + std::to_string(env_.random());
  std::unique_ptr<Tier> tier_;
};

class HostTierWorld final : public TierWorld {
 public:
  HostTierWorld(std::uint32_t threads, const char* codec)
      : codec_(**find_codec(std::string_view(codec))) {
    auto tier = open_host_tier(env_, {.memory_bytes = 1 << 20,
                                      .max_pages = limit_pages,
                                      .shape = small_shape,
                                      .layers = 4,
                                      .codec = &codec_,
                                      .threads = threads,
                                      .queue_depth = queue_depth});
    EXPECT_TRUE(tier.ok()) << tier.error().message;
    tier_ = std::move(tier).value();
  }
  Tier& tier() override { return *tier_; }
  const Codec& codec() override { return codec_; }

 private:
  const Codec& codec_;
  MemoryEnv env_;
  std::unique_ptr<Tier> tier_;
};

std::unique_ptr<TierWorld> host(std::uint32_t threads, const char* codec) {
  return std::make_unique<HostTierWorld>(threads, codec);
}

std::unique_ptr<TierWorld> disk_in_memory(std::uint32_t io_threads) {
  return std::make_unique<DiskTierWorld>(std::make_unique<MemoryEnv>(), io_threads);
}

std::unique_ptr<TierWorld> disk_on_files() { return std::make_unique<DiskTierWorld>(nullptr, 2); }

INSTANTIATE_TEST_SUITE_P(
    Tiers, TierConformance,
    testing::Values(NamedWorld{"DiskInMemory", [] { return disk_in_memory(1); }},
                    NamedWorld{"DiskInMemoryTwoThreads", [] { return disk_in_memory(2); }},
                    NamedWorld{"DiskOnFiles", [] { return disk_on_files(); }},
                    NamedWorld{"Host", [] { return host(1, "raw"); }},
                    NamedWorld{"HostLosslessTwoThreads", [] { return host(2, "lossless"); },
                               "lossless"}),
    [](const auto& world) { return std::string(world.param.name); });

}  // namespace
}  // namespace headrace
