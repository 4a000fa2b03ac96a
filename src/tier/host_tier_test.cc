// The memory tier: what goes beyond tier_conformance_test.cc.
#include "tier/host_tier.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "env/memory_env.h"
#include "tier/tier_test_pages.h"

namespace headrace {
namespace {

constexpr PageShape shape = {.tokens = 64, .kv_heads = 2, .head_dim = 64, .type = KvType::f16};

class HostTierTest : public testing::Test {
 protected:
  void open(const HostTierOptions& options) {
    auto opened = open_host_tier(env_, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    tier_ = std::move(opened).value();
    client_ = std::make_unique<TierClient>(*tier_);
  }
  static HostTierOptions options(std::uint64_t memory_bytes, const char* codec = "lossless") {
    return {.memory_bytes = memory_bytes,
            .max_pages = 64,
            .shape = shape,
            .layers = 30,
            .codec = *find_codec(std::string_view(codec)),
            .threads = 2,
            .queue_depth = 8};
  }
  /// A page that the lossless codec makes smaller.
  static TestPage soft_page(std::uint32_t number) {
    TestPage page = test_page(number, shape);
    for (std::size_t i = 1; i < page.bytes.size(); i += 2) page.bytes[i] &= std::byte{7};
    page.checksum = hash_bytes(page.bytes);
    return page;
  }
  Result<void> put_encoded(const TestPage& page, Bytes encoded) {
    HEADRACE_TRY_ASSIGN(const TierTicket ticket,
                        tier_->submit_put_encoded(page.identity, page.checksum, encoded));
    return client_->finish(ticket);
  }

  MemoryEnv env_;
  std::unique_ptr<Tier> tier_;
  std::unique_ptr<TierClient> client_;
};

TEST_F(HostTierTest, TakesTheMemoryThatItSaysAndNoMore) {
  const HostTierOptions wanted = options(1 << 20);
  open(wanted);
  EXPECT_EQ(tier_->memory_bytes(), host_tier_memory_bytes(wanted));
  EXPECT_LE(tier_->memory_bytes(), wanted.memory_bytes);
  EXPECT_GT(tier_->memory_bytes(), wanted.memory_bytes - 2 * host_chunk_bytes);
}

TEST_F(HostTierTest, SmallerPagesMeanMoreOfThem) {
  const auto pages_that_fit = [&](const char* codec) {
    open(options(1 << 20, codec));
    std::uint32_t pages = 0;
    while (pages < 64 && client_->put(soft_page(pages)).ok()) ++pages;
    for (std::uint32_t i = 0; i < pages; ++i) EXPECT_EQ(outcome(client_->get(soft_page(i))), "ok");
    EXPECT_LE(tier_->stats().bytes, tier_->memory_bytes());
    return pages;
  };
  const std::uint32_t raw = pages_that_fit("raw");
  const std::uint32_t coded = pages_that_fit("lossless");
  EXPECT_GT(raw, 20U);
  EXPECT_GE(coded * 4, raw * 5);
}

TEST_F(HostTierTest, AFullTierRefusesAndErasingMakesRoomForPagesOfOtherSizes) {
  open(options(1 << 20));
  std::uint32_t pages = 0;
  while (client_->put(soft_page(pages)).ok()) ++pages;
  EXPECT_EQ(outcome(client_->put(soft_page(pages))), "out_of_budget");
  EXPECT_FALSE(tier_->has(soft_page(pages).identity.key));
  EXPECT_EQ(tier_->stats().pages, pages);
  tier_->erase(soft_page(0).identity.key);
  tier_->erase(soft_page(7).identity.key);
  EXPECT_FALSE(tier_->has(soft_page(7).identity.key));
  EXPECT_EQ(outcome(client_->put(test_page(90, shape))), "ok");  // larger than either
  EXPECT_EQ(outcome(client_->get(test_page(90, shape))), "ok");
  EXPECT_EQ(outcome(client_->get(soft_page(1))), "ok");
}

TEST_F(HostTierTest, APutOfAStoredPageWritesNothingAndOneEraseDropsIt) {
  open(options(1 << 20));
  const TestPage page = soft_page(1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client_->put(page).ok());
  EXPECT_EQ(tier_->stats().puts, 1U);
  tier_->erase(page.identity.key);
  EXPECT_EQ(outcome(client_->get(page)), "not_found");
  EXPECT_EQ(tier_->stats().pages, 0U);
  EXPECT_EQ(tier_->stats().bytes, 0U);
}

TEST_F(HostTierTest, AnErasedPutEndsWellAndStoresNothing) {
  MemoryEnv env({.executors = ExecutorKind::manual});
  auto opened = open_host_tier(env, options(1 << 20));
  ASSERT_TRUE(opened.ok());
  const std::unique_ptr<Tier> tier = std::move(opened).value();
  TierClient client(*tier);
  const TestPage page = soft_page(1);
  const auto put = tier->submit_put(page.identity, page.checksum, page.bytes);
  const auto joined = tier->submit_put(page.identity, page.checksum, page.bytes);
  EXPECT_TRUE(tier->has(page.identity.key));
  std::vector<std::byte> target = empty_target(shape);
  const auto get = tier->submit_get(page.identity, page.checksum, target);
  tier->erase(page.identity.key);
  EXPECT_FALSE(tier->has(page.identity.key));
  env.run_pending();
  EXPECT_EQ(outcome(client.finish(*put)), "ok");
  EXPECT_EQ(outcome(client.finish(*joined)), "ok");
  EXPECT_EQ(outcome(client.finish(*get)), "ok");
  EXPECT_EQ(target, page.bytes);
  EXPECT_EQ(outcome(client.get(page)), "not_found");
  EXPECT_EQ(tier->stats().bytes, 0U);
}

TEST_F(HostTierTest, AnEncodedPageComesBackDecoded) {
  open(options(1 << 20));
  const TestPage page = soft_page(1);
  const Codec& codec = *find_codec(CodecId::lossless);
  std::vector<std::byte> encoded(codec.encoded_bytes_max(shape));
  encoded.resize(
      codec.encode({shape, shape.tokens, page.identity.key.layer, 30, page.identity.first_position},
                   page.bytes, encoded));
  EXPECT_EQ(outcome(put_encoded(page, encoded)), "ok");
  EXPECT_EQ(outcome(client_->get(page)), "ok");
}

TEST_F(HostTierTest, EveryFlippedBitOfAnEncodedPageIsFound) {
  // Bits are flipped before the tier hashes them, so only the hash of the decoded page can tell.
  open(options(1 << 20));
  const Codec& codec = *find_codec(CodecId::lossless);
  TestPage page = soft_page(1);
  std::vector<std::byte> encoded(codec.encoded_bytes_max(shape));
  encoded.resize(
      codec.encode({shape, shape.tokens, page.identity.key.layer, 30, page.identity.first_position},
                   page.bytes, encoded));
  std::uint64_t damaged = 0;
  for (std::size_t bit = 0; bit < 8 * encoded.size(); bit += 97) {
    encoded[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(outcome(put_encoded(page, encoded)), "ok");
    ASSERT_EQ(outcome(client_->get(page)), "corrupt") << bit;
    ASSERT_EQ(outcome(client_->get(page)), "not_found") << "a damaged page stayed";
    encoded[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(tier_->stats().damaged, ++damaged);
  }
}

TEST_F(HostTierTest, TooLittleMemoryIsRefusedWithTheLeastThatWorks) {
  const auto opened = open_host_tier(env_, options(10'000));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(opened.error().message.find("at least"), std::string::npos);
}

}  // namespace
}  // namespace headrace
