#include "cache/sequence_cache.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "env/fault_env.h"
#include "env/memory_env.h"

namespace headrace {
namespace {

/// Reads `text` in random steps and audits after each.
void expect_right_outputs(PageStore& store, const std::vector<TokenId>& text,
                          std::mt19937_64& random) {
  Auditor auditor(store);
  {
    Reader reader(store, text);
    const std::size_t rows_most = 1 + random() % 64;
    while (!reader.done()) {
      const auto outcome = reader.read(1 + random() % rows_most);
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
      auditor.expect_in_order({&reader.sequence()});
    }
  }
  auditor.expect_empty();
}

TEST(SequenceCache, YieldsTheSameBytesWhateverThePoolHolds) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  ASSERT_EQ(small_store().layers + 3, 6U) << "the least";
  for (const std::uint32_t slots : {6U, 7U, 8U, 9U, 10U, 12U, 15U, 18U, 23U, 28U, 29U}) {
    SCOPED_TRACE(std::to_string(slots) + " slots");
    MemoryEnv env;
    const auto store = open_store(env, with_slots(small_store(), slots));
    ASSERT_EQ(store->pool().slots(), slots);
    expect_right_outputs(*store, random_text(160, random()), random);
    EXPECT_GT(store->stats().pages_written, 0U);
    EXPECT_GT(store->stats().pages_filled_from_disk, 0U);
    EXPECT_EQ(store->stats().pages_damaged, 0U);
  }
}

TEST(SequenceCache, YieldsTheSameBytesWithEveryGeometry) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  const auto between = [&random](std::uint32_t least, std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(least, most)(random);
  };
  for (int round = 0; round < 12; ++round) {
    PageStoreOptions options = small_store();
    options.shape = {.tokens = 16 * between(1, 3),
                     .kv_heads = between(1, 3),
                     .head_dim = 16 * between(1, 2),
                     .type = between(0, 1) == 0 ? KvType::f16 : KvType::f32};
    options.layers = between(1, 5);
    options.context = 4'000;
    options = with_slots(options, options.layers + between(3, 12));
    MemoryEnv env;
    const auto store = open_store(env, options);
    expect_right_outputs(*store, random_text(between(1, 200), random()), random);
  }
}

TEST(SequenceCache, LayersWithAWindowKeepOnlyWhatItNeeds) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 12; ++round) {
    PageStoreOptions options = small_store();
    options.step_rows = 64;
    for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
      options.windows.push_back(
          static_cast<std::uint32_t>(random() % 3 == 0 ? 0 : 1 + random() % 50));
    }
    const std::vector<TokenId> text = random_text(160 + random() % 100, random());
    for (const bool all_in_memory : {true, false}) {
      SCOPED_TRACE(all_in_memory ? "all in memory" : "streamed");
      const std::uint32_t open = options.layers * (options.has_windows() ? 2 : 1);
      const std::uint32_t slots = open + 3 + static_cast<std::uint32_t>(random() % 5);
      MemoryEnv env;
      const auto store = open_store(env, all_in_memory ? options : with_slots(options, slots));
      expect_right_outputs(*store, text, random);
      if (!all_in_memory) continue;
      std::uint64_t tokens = 0;
      for (const std::uint32_t window : options.windows)
        tokens += window == 0 ? text.size() : std::min<std::uint64_t>(window, text.size());
      EXPECT_EQ(store->stats().kv_bytes_needed, tokens * 64);
    }
  }
}

// What a windowed layer had far back is gone, so the text is read again up to the lost page.
TEST(SequenceCache, APageIsRebuiltThoughWhatItWasMadeFromIsBehindAWindow) {
  PageStoreOptions options = small_store();
  options.windows = {20, 0, 20};
  ImmediateEnv memory;
  FaultEnv env(memory);
  const auto store = open_store(env, with_slots(options, 3 * 2 + 3));
  Auditor auditor(*store);
  {
    Reader reader(*store, random_text(200, 1));
    while (reader.position() < 192) ASSERT_TRUE(reader.read(16).ok());
    const PagePlace far_back = {.layer = 1, .block = 3};
    ASSERT_FALSE(reader.sequence().table().page(1, 3).slot) << "streamed";
    ASSERT_FALSE(reader.sequence().can_replay(far_back));
    ASSERT_TRUE(reader.sequence().can_replay({.layer = 1, .block = 0})) << "needs nothing else";
    // Every page that is read is damaged, one after the other, until the step succeeds.
    env.set_plan({{.operation = EnvOperation::read, .kind = FaultKind::flip_bit, .bit = 40'000}});
    ASSERT_TRUE(reader.read(1).ok());
    EXPECT_GT(store->stats().pages_filled_by_replay, 0U);
    auditor.expect_in_order({&reader.sequence()});
    env.set_plan({});
    ASSERT_TRUE(reader.read_all(3).ok());
  }
  auditor.expect_empty();
}

TEST(SequenceCache, TouchesNoDiskWhenEverythingFits) {
  ImmediateEnv env;
  const auto store = open_store(env, small_store());
  EXPECT_TRUE(store->holds_everything());
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.read_all(48).ok());
  EXPECT_EQ(store->pool().slots(), small_store().sequences * 300U);
  EXPECT_FALSE(env.exists("/tmp/kv"));
  EXPECT_EQ(store->stats().pages_sealed, 30U);
  EXPECT_EQ(store->stats().pages_written, 0U);
  EXPECT_EQ(store->stats().kv_bytes_needed, std::uint64_t{160} * 3 * 64);
}

TEST(SequenceCache, SealsABlockWithItsLastToken) {
  ImmediateEnv env;
  const auto store = open_store(env, small_store());
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.read(15).ok());
  EXPECT_FALSE(reader.sequence().table().block(0).sealed);
  EXPECT_EQ(store->stats().pages_sealed, 0U);
  ASSERT_TRUE(reader.read(1).ok());
  EXPECT_TRUE(reader.sequence().table().block(0).sealed);
  EXPECT_EQ(store->stats().pages_sealed, 3U);
}

TEST(SequenceCache, ABlockIsNamedByEverythingThatItsBytesDependOn) {
  const auto key_of_second_block = [](const PageStoreOptions& options,
                                      const std::vector<TokenId>& text) {
    ImmediateEnv env;
    const auto store = open_store(env, options);
    Reader reader(*store, text);
    EXPECT_TRUE(reader.read_all(160).ok());
    return reader.sequence().table().block(options.shape.tokens == 16 ? 1 : 0).key;
  };
  const std::vector<TokenId> text = random_text(32, 1);
  const PageStoreOptions options = small_store();
  const Digest128 key = key_of_second_block(options, text);
  EXPECT_EQ(key_of_second_block(options, text), key);

  std::vector<TokenId> other_text = text;
  other_text[0] += 1;
  EXPECT_NE(key_of_second_block(options, other_text), key) << "a token of the block before";
  other_text = text;
  other_text[31] += 1;
  EXPECT_NE(key_of_second_block(options, other_text), key) << "a token of the block";

  PageStoreOptions other = options;
  other.model.low += 1;
  EXPECT_NE(key_of_second_block(other, text), key) << "the model";
  other = options;
  other.shape.type = KvType::f32;
  EXPECT_NE(key_of_second_block(other, text), key) << "the type";
  other = options;
  other.shape.head_dim = 32;
  EXPECT_NE(key_of_second_block(other, text), key) << "the head";
  other = options;
  other.shape.kv_heads = 2;
  EXPECT_NE(key_of_second_block(other, text), key) << "the number of heads";
  other = options;
  other.shape.tokens = 32;
  EXPECT_NE(key_of_second_block(other, text), key) << "the size of a block";
}

TEST(SequenceCache, AnAbortedStepLeavesNothingBehind) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 20));
  Auditor auditor(*store);
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.read(40).ok());
  const std::uint32_t free_slots = store->pool().free_slots();
  for (const std::uint32_t rows : {1U, 8U, 9U, 24U, 40U}) {
    ASSERT_TRUE(reader.sequence().begin(rows).ok());
    reader.sequence().abort();
    EXPECT_GE(store->pool().free_slots(), free_slots) << "a step of " << rows << " rows";
    auditor.expect_in_order({&reader.sequence()});
  }
  EXPECT_EQ(reader.position(), 40U);
  const auto outcome = reader.read_all(7);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
}

TEST(SequenceCache, AStepAbortedInTheMiddleOfTheLayersCanBeRunAgain) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 8));
  Auditor auditor(*store);
  Reader reader(*store, random_text(160, random()));
  while (!reader.done()) {
    // Other tokens, part of the layers: what they wrote must not matter.
    const auto position = static_cast<std::uint32_t>(reader.position());
    const std::uint32_t rows = reader.sequence().rows_possible(
        std::min<std::uint32_t>(1 + static_cast<std::uint32_t>(random() % 20), 160 - position));
    ASSERT_TRUE(reader.sequence().begin(rows).ok());
    const auto layers = static_cast<std::uint32_t>(random() % 4);
    ASSERT_TRUE(reader.model().run(reader.sequence(), random_text(rows, 7), position, layers).ok());
    reader.sequence().abort();
    auditor.expect_in_order({&reader.sequence()});
    ASSERT_TRUE(reader.read(1 + random() % 20).ok());
    auditor.expect_in_order({&reader.sequence()});
  }
}

TEST(SequenceCache, AStepMayEndWithoutHavingReadAllItsPages) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 8));
  Auditor auditor(*store);
  Reader reader(*store, random_text(160, 1));
  while (reader.position() < 144) ASSERT_TRUE(reader.read(16).ok());
  for (int batches = 0; batches < 6; ++batches) {
    ASSERT_TRUE(reader.sequence().begin(1).ok());
    PageStream& stream = reader.sequence().attend(0);
    for (int i = 0; i < batches; ++i) ASSERT_TRUE(stream.next().ok());
    reader.sequence().abort();
    auditor.expect_in_order({&reader.sequence()});
  }
  EXPECT_TRUE(reader.read_all(16).ok());
}

TEST(SequenceCache, OffersAtLeastOneRowAndNoMoreThanWanted) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 6));
  Reader reader(*store, random_text(160, 1));
  while (!reader.done()) {
    EXPECT_EQ(reader.sequence().rows_possible(1), 1U);
    const std::uint32_t rows = reader.sequence().rows_possible(1'000);
    EXPECT_GE(rows, 1U);
    EXPECT_LE(rows, 16U) << "the pool has one block";
    ASSERT_TRUE(reader.read(5).ok());
  }
}

TEST(SequenceCacheDeathTest, AStepBeyondTheContextEndsTheProcess) {
  ImmediateEnv env;
  PageStoreOptions options = small_store();
  options.context = 40;
  const auto store = open_store(env, options);
  Reader reader(*store, random_text(40, 1));
  ASSERT_TRUE(reader.read_all(40).ok());
  EXPECT_DEATH(static_cast<void>(reader.sequence().begin(1)), "a step outside the context");
}

// Guesses that were wrong.
TEST(SequenceCache, RowsThatAreNotKeptLeaveNoTrace) {
  ImmediateEnv env;
  const auto store = open_store(env, with_slots(small_store(), 12));
  Auditor auditor(*store);
  {
    const std::vector<TokenId> text = random_text(160, 1);
    Reader reader(*store, text);
    SequenceCache& sequence = reader.sequence();
    for (std::size_t kept = 1; !reader.done(); kept = kept % 5 + 1) {
      const std::size_t position = reader.position();
      const std::uint32_t rows = sequence.rows_possible(20);
      if (position + rows > text.size()) break;
      std::vector<TokenId> guess(text.begin() + static_cast<std::ptrdiff_t>(position),
                                 text.begin() + static_cast<std::ptrdiff_t>(position + rows));
      const std::size_t right = std::min<std::size_t>(kept, rows);
      for (std::size_t i = right; i < rows; ++i) guess[i] += 1;
      ASSERT_TRUE(sequence.begin(rows).ok());
      const auto first_position = static_cast<std::uint32_t>(position);
      ASSERT_TRUE(reader.model().run(sequence, guess, first_position, 3).ok());
      sequence.commit(std::span(guess).first(right));
      auditor.expect_in_order({&sequence});
    }
    const auto outcome = reader.read_all(7);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  }
  auditor.expect_empty();
}

TEST(SequenceCacheDeathTest, CommittingMoreRowsThanBegunOrNoneEndsTheProcess) {
  ImmediateEnv env;
  const auto store = open_store(env, small_store());
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.sequence().begin(3).ok());
  EXPECT_DEATH(reader.sequence().commit(random_text(4, 1)), "commit\\(\\) of other rows");
  EXPECT_DEATH(reader.sequence().commit({}), "commit\\(\\) of other rows");
}

}  // namespace
}  // namespace headrace
