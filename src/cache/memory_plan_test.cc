#include "cache/memory_plan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "codec/key_sketch.h"

namespace headrace {
namespace {

/// SmolLM2 135M with 8192 tokens: 32 blocks of 30 pages of 192 KiB.
PageStoreOptions smol_lm2() {
  PageStoreOptions options;
  options.shape = {.tokens = 256, .kv_heads = 3, .head_dim = 64, .type = KvType::f16};
  options.layers = 30;
  options.context = 8192;
  options.sequences = 1;
  options.disk_directory = "/tmp/kv";
  return options;
}

/// What the parts of a plan take together.
std::uint64_t planned_bytes(const MemoryPlan& plan) {
  return plan.pool_bytes + plan.bookkeeping_bytes + plan.io_bytes;
}

/// The size that a refusal asks for.
std::uint64_t named_size(const std::string& message) {
  const std::size_t end = message.find("; raise --kv-memory to that");
  EXPECT_NE(end, std::string::npos) << message;
  const std::size_t begin = message.rfind(' ', end) + 1;
  const auto bytes = parse_byte_count(message.substr(begin, end - begin));
  EXPECT_TRUE(bytes.ok()) << message;
  return bytes.ok() ? *bytes : 0;
}

struct PlanCase {
  const char* name;
  std::uint64_t memory_bytes;
  std::uint32_t slots;
  std::uint32_t stream_slots;
};

class MemoryPlanTable : public testing::TestWithParam<PlanCase> {};

TEST_P(MemoryPlanTable, DividesTheMemoryOfSmolLm2) {
  PageStoreOptions options = smol_lm2();
  options.memory_bytes = GetParam().memory_bytes;
  const auto plan = plan_memory(options);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->blocks_max, 32U);
  EXPECT_EQ(plan->slots, GetParam().slots);
  EXPECT_EQ(plan->stream_slots, GetParam().stream_slots);
  EXPECT_EQ(plan->pool_bytes, std::uint64_t{plan->slots} * 196'608);
  EXPECT_LE(planned_bytes(*plan), plan->limit_bytes);
  EXPECT_EQ(plan->io_bytes == 0, plan->stream_slots == 0);
}

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
// 960 pages of 192 KiB are 180 MiB.
INSTANTIATE_TEST_SUITE_P(Sizes, MemoryPlanTable,
                         testing::Values(PlanCase{"Everything", 0, 960, 0},
                                         PlanCase{"MoreThanEverything", 1'000 * mib, 960, 0},
                                         PlanCase{"Half", 90 * mib, 472, 32},
                                         PlanCase{"Eighth", 180 * mib / 8, 113, 14}),
                         [](const auto& test) { return test.param.name; });

TEST(MemoryPlan, EverythingFitsIntoWhatAFullContextNeedsAndNotIntoAByteLess) {
  PageStoreOptions options = smol_lm2();
  options.memory_bytes = full_memory_bytes(options);
  EXPECT_EQ(plan_memory(options)->stream_slots, 0U);
  EXPECT_EQ(planned_bytes(*plan_memory(options)), options.memory_bytes);
  --options.memory_bytes;
  EXPECT_GT(plan_memory(options)->stream_slots, 0U);
  EXPECT_LT(plan_memory(options)->slots, 960U);
}

TEST(MemoryPlan, EverythingIsAFullContextOfEachSequence) {
  PageStoreOptions options = smol_lm2();
  options.sequences = 3;
  EXPECT_EQ(plan_memory(options)->slots, 3 * 960U);
  options.memory_bytes = full_memory_bytes(smol_lm2());
  EXPECT_GT(plan_memory(options)->stream_slots, 0U) << "one context of three does";
}

TEST(MemoryPlan, TheLeastMemoryHoldsOneBlockAndThreePagesThatStream) {
  PageStoreOptions options = smol_lm2();
  options.memory_bytes = least_memory_bytes(options);
  const auto plan = plan_memory(options);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->slots, 33U);
  EXPECT_EQ(plan->stream_slots, 3U);
  EXPECT_EQ(planned_bytes(*plan), options.memory_bytes);
}

TEST(MemoryPlan, AByteLessThanTheLeastIsRefusedWithASizeThatWorks) {
  PageStoreOptions options = smol_lm2();
  const std::uint64_t least = least_memory_bytes(options);
  options.memory_bytes = least - 1;
  const auto plan = plan_memory(options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::out_of_budget);
  EXPECT_EQ(plan.error().message.find('\n'), std::string::npos);
  options.memory_bytes = named_size(plan.error().message);
  EXPECT_TRUE(plan_memory(options).ok());
  EXPECT_LT(options.memory_bytes - least, 1024U) << "the least, rounded up to a KiB";
}

TEST(MemoryPlan, AContextOfOneBlockAsksForNoMoreThanEverything) {
  // Streaming would need three slots on top of the only block, so that everything is less.
  PageStoreOptions options = smol_lm2();
  options.context = 200;
  options.memory_bytes = full_memory_bytes(options) - 1;
  const auto plan = plan_memory(options);
  ASSERT_FALSE(plan.ok());
  const std::uint64_t size = named_size(plan.error().message);
  EXPECT_LT(size - full_memory_bytes(options), 1024U) << plan.error().message;
}

TEST(MemoryPlan, AKeptDirectoryAsksForMoreThanEverythingOfAShortContext) {
  // What is kept passes through the pool even where a context would fit into memory.
  PageStoreOptions options = smol_lm2();
  options.context = 200;
  options.keep_disk = true;
  options.memory_bytes = 1;
  const auto plan = plan_memory(options);
  ASSERT_FALSE(plan.ok());
  options.memory_bytes = named_size(plan.error().message);
  const auto again = plan_memory(options);
  EXPECT_TRUE(again.ok()) << again.error().message;
}

TEST(MemoryPlan, ReservesTheIndexOfAllPagesThatSequencesCanStore) {
  const PageStoreOptions options = smol_lm2();
  EXPECT_EQ(tier_options(options).max_pages, options.sequences * 32 * 30);
  EXPECT_EQ(tier_options(options).directory, options.disk_directory);
}

/// Any store, from tiny to that of a large model.
PageStoreOptions random_options(std::mt19937_64& random) {
  const auto between = [&random](std::uint32_t least, std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(least, most)(random);
  };
  PageStoreOptions options;
  options.shape = {.tokens = 16 * between(1, 32),
                   .kv_heads = between(1, 16),
                   .head_dim = 16 * between(1, 16),
                   .type = between(0, 1) == 0 ? KvType::f16 : KvType::f32};
  options.layers = between(1, 80);
  options.context = between(1, 40'000);
  options.disk_directory = "/tmp/kv";
  if (between(0, 2) == 0) {
    options.step_rows = between(1, 2'000);
    for (std::uint32_t layer = 0; layer < options.layers; ++layer)
      options.windows.push_back(between(0, 1) * between(1, 4'000));
  }
  return options;
}

TEST(MemoryPlan, NeverExceedsTheLimitAndNamesASizeThatWorks) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int round = 0; round < 3'000; ++round) {
    PageStoreOptions options = random_options(random);
    const std::uint64_t full = full_memory_bytes(options);
    // From everything down to nothing, the small sizes as likely as the large ones.
    options.memory_bytes = 1 + (full >> (random() % 12)) - random() % 2;
    const auto plan = plan_memory(options);
    if (plan.ok()) {
      ASSERT_LE(planned_bytes(*plan), plan->limit_bytes);
      ASSERT_LE(plan->limit_bytes, options.memory_bytes);
      ASSERT_EQ(plan->stream_slots == 0, options.memory_bytes >= full);
      if (plan->stream_slots > 0) {
        ASSERT_GE(plan->stream_slots, 3U);
        ASSERT_GE(plan->slots, options.layers + plan->stream_slots) << "no room for one step";
        ASSERT_EQ(plan->io_bytes, disk_tier_memory_bytes(tier_options(options)));
      }
      continue;
    }
    ++refused;
    ASSERT_EQ(plan.error().code, ErrorCode::out_of_budget);
    const std::uint64_t size = named_size(plan.error().message);
    ASSERT_GT(size, options.memory_bytes);
    options.memory_bytes = size;
    ASSERT_TRUE(plan_memory(options).ok()) << plan.error().message;
    if (size > 1024) {
      options.memory_bytes = size - 1024;
      ASSERT_FALSE(plan_memory(options).ok()) << "less would do: " << plan.error().message;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(MemoryPlan, MoreMemoryNeverGivesFewerSlotsWhileStreaming) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    PageStoreOptions options = random_options(random);
    std::uint32_t slots = 0;
    const std::uint64_t full = full_memory_bytes(options);
    for (std::uint64_t part = 1; part <= 20; ++part) {
      options.memory_bytes = full / 20 * part;
      const auto plan = plan_memory(options);
      if (!plan.ok()) continue;
      ASSERT_GE(plan->slots, slots);
      slots = plan->slots;
    }
  }
}

TEST(MemoryPlan, AStoreOpensWithTheSizeThatTheRefusalNames) {
  ImmediateEnv env;
  PageStoreOptions options = small_store();
  options.memory_bytes = 1;
  const auto refused = PageStore::open(env, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_budget);
  EXPECT_FALSE(env.exists("/tmp/kv")) << "refused before anything was made";
  options.memory_bytes = named_size(refused.error().message);
  const auto store = open_store(env, options);
  Reader reader(*store, random_text(160, 1));
  ASSERT_TRUE(reader.read_all(160).ok());
}

TEST(MemoryPlan, RecallHasRoomForTheSketchesOfAllBlocksInUse) {
  PageStoreOptions options = smol_lm2();
  const MemoryPlan exact = plan_memory(options).value();
  EXPECT_EQ(exact.sketches, 0U);
  options.attention.mode = AttentionMode::recall;
  const MemoryPlan recall = plan_memory(options).value();
  EXPECT_GE(recall.sketches, recall.blocks_max);
  EXPECT_EQ(recall.bookkeeping_bytes - exact.bookkeeping_bytes,
            std::uint64_t{recall.sketches} * options.layers * key_sketch_bytes(options.shape) +
                options.sequences * (GroupCache::bytes(options) + options.choice_groups()) +
                recall.slots * GroupCache::bytes_per_slot(options));
  options.memory_bytes = exact.limit_bytes / 2;
  const MemoryPlan bounded = plan_memory(options).value();
  EXPECT_LE(planned_bytes(bounded), options.memory_bytes);
  EXPECT_EQ(bounded.sketches, recall.sketches);
}

TEST(MemoryPlan, SparseHasRoomForWhatItNotesOfEveryGroupOfTokens) {
  PageStoreOptions options = smol_lm2();
  const MemoryPlan exact = plan_memory(options).value();
  options.attention.mode = AttentionMode::window;
  const std::uint64_t tokens = std::uint64_t{exact.blocks_max} * options.shape.tokens;
  const std::uint64_t zones = options.sequences * tokens / 8;  // a byte for every 8 tokens
  EXPECT_EQ(plan_memory(options).value().bookkeeping_bytes, exact.bookkeeping_bytes + zones);
  options.attention.mode = AttentionMode::sparse;
  // Two floats for every 4 tokens: as it was before a step, and after it.
  EXPECT_EQ(plan_memory(options).value().bookkeeping_bytes - exact.bookkeeping_bytes - zones,
            options.sequences * options.layers * options.shape.kv_heads * tokens / 4 * 8);
  options.memory_bytes = exact.limit_bytes / 2;
  EXPECT_LE(planned_bytes(plan_memory(options).value()), options.memory_bytes);
}

/// Keeps rows of a kibibyte of a token. What they are does not matter here.
class HiddenRowsCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::hidden_f16; }
  std::uint32_t hidden_row_bytes() const override { return 1'024; }
  bool is_lossless() const override { return true; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return std::uint64_t{shape.tokens} * hidden_row_bytes();
  }
  std::uint64_t encode(const PagePlan&, Bytes, MutableBytes) const override { return 0; }
  Result<void> decode(const PagePlan&, Bytes, MutableBytes) const override { return {}; }
};

TEST(MemoryPlan, HiddenStatesOfTheBlockUnderWayAreCountedAndThoseOnTheirWayToATier) {
  PageStoreOptions options = smol_lm2();
  options.memory_bytes = std::uint64_t{96} << 20;
  const MemoryPlan pages = plan_memory(options).value();
  const HiddenRowsCodec codec;
  options.codec = &codec;
  const MemoryPlan hidden = plan_memory(options).value();
  const std::uint64_t block = std::uint64_t{30} * 256 * 1'024;
  EXPECT_EQ(hidden.bookkeeping_bytes - hidden.slots * hidden.slot_books_bytes,
            pages.bookkeeping_bytes - pages.slots * pages.slot_books_bytes + block);
  EXPECT_EQ(hidden.io_bytes, pages.io_bytes + block);
  EXPECT_LE(planned_bytes(hidden), options.memory_bytes);
}

TEST(MemoryPlan, WhereOnlyTheTextIsKeptNoPageStreamsAndABlockIsRebuilt) {
  PageStoreOptions options = smol_lm2();
  options.keeps_text_only = true;
  options.memory_bytes = std::uint64_t{96} << 20;
  const MemoryPlan plan = plan_memory(options).value();
  EXPECT_EQ(plan.stream_slots, 0U);
  EXPECT_EQ(plan.io_bytes, 0U);
  EXPECT_EQ(plan.slots_least, 2 * options.layers);
  EXPECT_LE(planned_bytes(plan), options.memory_bytes);
  options.memory_bytes = std::uint64_t{1} << 20;
  const auto refused = plan_memory(options);
  ASSERT_FALSE(refused.ok());
  options.memory_bytes = named_size(refused.error().message);
  const auto least = plan_memory(options);
  ASSERT_TRUE(least.ok()) << least.error().message;
  EXPECT_EQ(least->slots, least->slots_least);
}

}  // namespace
}  // namespace headrace
