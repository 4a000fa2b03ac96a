#include "cache/page_store.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "env/memory_env.h"

namespace headrace {
namespace {

/// One line that tells a person what to do.
void expect_helpful(const Error& error, ErrorCode code, const std::string& mentions) {
  EXPECT_EQ(error.code, code) << error.message;
  EXPECT_NE(error.message.find(mentions), std::string::npos) << error.message;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
}

TEST(PageStore, LeavesNothingBehind) {
  ImmediateEnv env;
  {
    const auto store = open_store(env, with_slots(small_store(), 8));
    EXPECT_FALSE(store->holds_everything());
    Auditor auditor(*store);
    {
      Reader reader(*store, random_text(160, 1));
      ASSERT_TRUE(reader.read_all(16).ok());
      EXPECT_TRUE(env.exists("/tmp/kv"));
    }
    auditor.expect_empty();
  }
  EXPECT_FALSE(env.exists("/tmp/kv"));
}

TEST(PageStore, ASequenceThatEndsGivesItsPlaceOnDiskBack) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(small_store(), 8);
  // 30 pages, of which at least 3 are in the pool when the last block is sealed.
  options.disk_bytes = disk_tier_limit_bytes(options.shape, 27);
  const auto store = open_store(env, options);
  for (std::uint64_t id = 1; id <= 12; ++id) {
    Reader reader(*store, random_text(160, id));
    const auto outcome = reader.read_all(16);
    ASSERT_TRUE(outcome.ok()) << "sequence " << id << ": " << outcome.error().message;
  }
  EXPECT_LE(store->stats().disk_bytes_peak, options.disk_bytes);
}

TEST(PageStore, AFifthSequenceIsRefusedUntilAnotherEnds) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 20));
  std::vector<std::unique_ptr<SequenceCache>> sequences;
  for (std::uint64_t id = 1; id <= PageStoreOptions().sequences; ++id) {
    sequences.push_back(SequenceCache::create(*store).value());
  }
  const auto fifth = SequenceCache::create(*store);
  ASSERT_FALSE(fifth.ok());
  expect_helpful(fifth.error(), ErrorCode::out_of_budget,
                 "4 sequences already; end one before starting another");
  sequences.pop_back();
  EXPECT_TRUE(SequenceCache::create(*store).ok());
}

TEST(PageStore, SequencesTakeTurnsInOnePool) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  for (std::uint32_t sequences = 2; sequences <= PageStoreOptions().sequences; ++sequences) {
    for (const std::uint32_t spare_slots : {0U, 1U, 4U, 9U}) {
      SCOPED_TRACE(std::to_string(sequences) + " sequences, spare " + std::to_string(spare_slots));
      ImmediateEnv env;
      // Each may have an open block.
      const std::uint32_t slots = sequences * small_store().layers + 3 + spare_slots;
      const auto store = open_store(env, with_slots(small_store(), slots));
      Auditor auditor(*store);
      std::vector<std::unique_ptr<Reader>> readers;
      std::vector<SequenceCache*> caches;
      for (std::uint64_t id = 1; id <= sequences; ++id) {
        readers.push_back(std::make_unique<Reader>(*store, random_text(100, random())));
        caches.push_back(&readers.back()->sequence());
      }
      while (!readers.empty()) {
        const std::size_t turn = random() % readers.size();
        const auto outcome = readers[turn]->read(1 + random() % 40);
        ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        auditor.expect_in_order(caches);
        if (!readers[turn]->done()) continue;
        readers.erase(readers.begin() + static_cast<std::ptrdiff_t>(turn));
        caches.erase(caches.begin() + static_cast<std::ptrdiff_t>(turn));
      }
      auditor.expect_empty();
    }
  }
}

TEST(PageStore, SequencesWithTheSameTokensShareWhatIsStored) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(small_store(), 12);
  // Room for the pages of little more than one of the three.
  options.disk_bytes = 30 * disk_tier_record_bytes(options.shape);
  const auto store = open_store(env, options);
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    readers.push_back(std::make_unique<Reader>(*store, random_text(112, 5)));
  }
  for (int turn = 0; turn < 7; ++turn) {
    for (const auto& reader : readers) {
      const auto outcome = reader->read(16);
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    }
  }
  // One ends, and the others still have their pages.
  readers.pop_back();
  readers.erase(readers.begin());
  const std::uint64_t replays = store->stats().pages_filled_by_replay;
  Reader longer(*store, random_text(120, 5));
  EXPECT_TRUE(longer.read_all(16).ok());
  EXPECT_EQ(store->stats().pages_filled_by_replay, replays) << "a shared page went too early";
}

TEST(PageStore, AStepThatOthersLeaveNoRoomForIsRefusedAndTheyGoOn) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 6));
  Auditor auditor(*store);
  Reader first(*store, random_text(160, 1));
  Reader second(*store, random_text(160, 2));
  ASSERT_TRUE(first.read(5).ok());
  const auto outcome = second.read(5);
  ASSERT_FALSE(outcome.ok());
  expect_helpful(outcome.error(), ErrorCode::out_of_budget, "raise --kv-memory or run fewer");
  auditor.expect_in_order({&first.sequence(), &second.sequence()});
  ASSERT_TRUE(first.read(11).ok());
  EXPECT_TRUE(second.read(5).ok()) << "the block is sealed and can leave the pool";
  auditor.expect_in_order({&first.sequence(), &second.sequence()});
}

TEST(PageStore, RowsPossibleCountsWhatOtherSequencesHold) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 12));
  Reader first(*store, random_text(160, 1));
  Reader second(*store, random_text(160, 2));
  EXPECT_EQ(second.sequence().rows_possible(1'000), 48U);
  ASSERT_TRUE(first.read(5).ok());
  EXPECT_EQ(second.sequence().rows_possible(1'000), 32U);
  EXPECT_EQ(first.sequence().rows_possible(1'000), 11U + 32U);
  EXPECT_TRUE(second.read(1'000).ok());
}

TEST(PageStore, ADiskThatIsFullEndsTheStepInOneLineAndNotTheSequence) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 8));
  Auditor auditor(*store);
  Reader reader(*store, random_text(160, 1));
  env.set_capacity(disk_tier_limit_bytes(store->options().shape, 7));
  Result<void> outcome;
  while (outcome.ok() && !reader.done()) {
    outcome = reader.read(16);
    auditor.expect_in_order({&reader.sequence()});
  }
  ASSERT_FALSE(outcome.ok());
  expect_helpful(outcome.error(), ErrorCode::out_of_budget, "--kv-disk");
  EXPECT_GE(reader.position(), 32U);
  env.set_capacity(1U << 30);
  const auto later = reader.read_all(16);
  EXPECT_TRUE(later.ok()) << later.error().message;
}

TEST(PageStore, ALimitOfTheDiskIsKeptAndNamed) {
  ImmediateEnv env;
  PageStoreOptions options = with_slots(small_store(), 8);
  options.disk_bytes = 5 * disk_tier_record_bytes(options.shape);
  const auto store = open_store(env, options);
  Reader reader(*store, random_text(160, 1));
  const auto outcome = reader.read_all(16);
  ASSERT_FALSE(outcome.ok());
  expect_helpful(outcome.error(), ErrorCode::out_of_budget, "are in use");
  EXPECT_LE(store->stats().disk_bytes_peak, options.disk_bytes);
}

TEST(PageStore, ADirectoryThatIsInUseIsRefused) {
  ImmediateEnv env;
  const PageStoreOptions options = with_slots(small_store(), 8);
  const auto first = open_store(env, options);
  const auto second = PageStore::open(env, options);
  ASSERT_FALSE(second.ok());
  expect_helpful(second.error(), ErrorCode::io, "/tmp/kv");
}

TEST(PageStore, CountsWhatItDid) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 6));
  Reader reader(*store, random_text(64, 1));
  ASSERT_TRUE(reader.read_all(16).ok());
  const KvStats stats = store->stats();
  EXPECT_EQ(stats.pages_sealed, 12U);
  // One block fits beside the streaming slots, so each new one pushes the one before out.
  EXPECT_EQ(stats.pages_written, 9U);
  EXPECT_EQ(stats.pages_filled_from_disk, 3U * (1 + 2 + 3));
  EXPECT_GE(stats.disk_bytes_peak, 9 * disk_tier_record_bytes(store->options().shape));
  EXPECT_LE(stats.disk_bytes_peak, disk_tier_limit_bytes(store->options().shape, 9));
  EXPECT_EQ(stats.kv_bytes_needed, std::uint64_t{64} * 3 * 64);
}

TEST(PageStore, ThePeakGrowsWithTheSlotsThatAreUsedUpToTheLimit) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 12));
  const std::uint64_t at_first = store->stats().kv_bytes_peak;
  EXPECT_EQ(at_first, store->budget().used_bytes() - std::uint64_t{12} * 4096)
      << "bookkeeping and buffers, but no page yet";
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.read(1).ok());
  EXPECT_EQ(store->stats().kv_bytes_peak, at_first + std::uint64_t{3} * 4096);
  ASSERT_TRUE(reader.read_all(16).ok());
  EXPECT_EQ(store->stats().kv_bytes_peak, store->budget().used_bytes());
  EXPECT_LE(store->stats().kv_bytes_peak, store->stats().kv_bytes_limit);
}

TEST(PageStore, TheLimitOfMemoryGoesDownAndUpWhileTextsGoOn) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 60));
  const std::uint64_t most = store->budget().limit_bytes();
  Auditor auditor(*store);
  Reader reader(*store, random_text(160, 1));
  while (!reader.done()) {
    ASSERT_TRUE(reader.read(1 + random() % 16).ok());
    const std::uint64_t bytes = most - random() % (55 * 4096);
    const std::uint64_t before = store->budget().limit_bytes();
    const auto outcome = store->set_memory_bytes(bytes);
    EXPECT_EQ(store->budget().limit_bytes(), outcome.ok() ? bytes : before);
    EXPECT_LE(store->budget().used_bytes(), store->budget().limit_bytes());
    auditor.expect_in_order({&reader.sequence()});
  }
  const auto refused = store->set_memory_bytes(1'000);
  ASSERT_FALSE(refused.ok());
  expect_helpful(refused.error(), ErrorCode::out_of_budget, "give at least");
}

// A tier refuses a page for good, the next one for now: its queue is full.
TEST(PageStore, PagesThatLeaveAFullHostTierWaitForTheQueueOfTheDisk) {
  for (int round = 0; round < 20; ++round) {
    MemoryEnv env;
    PageStoreOptions options = small_store();
    options.host_bytes = 200 << 10;
    const std::uint64_t less = with_slots(options, 80).memory_bytes;
    const auto store = open_store(env, with_slots(options, 250));
    Auditor auditor(*store);
    Reader reader(*store, random_text(1'100, 1));
    ASSERT_TRUE(reader.read_all(48).ok());
    const auto lowered = store->set_memory_bytes(less);
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    auditor.expect_in_order({&reader.sequence()});
  }
}

TEST(PageStore, MemoryThatGrowsHoldsTheBooksOfItsPagesToo) {
  ImmediateEnv env;
  ImmediateEnv other_env;
  const auto small = open_store(env, with_slots(small_store(), 20));
  const auto large = open_store(other_env, with_slots(small_store(), 60));
  ASSERT_TRUE(small->set_memory_bytes(large->budget().limit_bytes()).ok());
  EXPECT_EQ(small->pool().slots(), large->pool().slots());
  EXPECT_EQ(small->budget().used_bytes(), large->budget().used_bytes());
}

TEST(PageStore, WithEverythingInMemoryALowerLimitTakesWhatNobodyUses) {
  ImmediateEnv env;
  PageStoreOptions options = small_store();
  options.reuse = true;
  options.context = 160;
  options.sequences = 2;
  const auto store = open_store(env, options);
  const std::uint64_t limit = store->budget().limit_bytes();
  {
    ASSERT_TRUE(Reader(*store, random_text(150, 1)).read_all(48).ok());
  }
  Reader reader(*store, random_text(150, 2));
  ASSERT_TRUE(reader.read_all(48).ok());
  ASSERT_TRUE(store->set_memory_bytes(limit - std::uint64_t{30} * 4096).ok());
  EXPECT_LT(store->pool().slots(), 35U) << "a slot takes its page and its part of the books";
  EXPECT_LE(store->budget().used_bytes(), store->budget().limit_bytes());
  const auto refused = store->set_memory_bytes(limit - std::uint64_t{40} * 4096);
  ASSERT_FALSE(refused.ok());
  expect_helpful(refused.error(), ErrorCode::out_of_budget, "KV memory");
}

TEST(PageStoreDeathTest, ASequenceThatOutlivesItsStoreEndsTheProcess) {
  ImmediateEnv env;
  auto store = open_store(env, small_store());
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.read(16).ok());
  EXPECT_DEATH(store.reset(), "a sequence outlives its cache");
}

}  // namespace
}  // namespace headrace
