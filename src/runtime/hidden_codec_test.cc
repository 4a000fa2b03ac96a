// Engines that keep hidden states instead of keys and values give the bits that they give with
// everything in memory.
#include "runtime/hidden_codec.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "codec/group_layout.h"
#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

constexpr const char* names[] = {"hidden-f32", "hidden-f16", "hidden-q8"};

class HiddenStates : public DecodingTest {
 protected:
  static EngineOptions roomy(const std::string& codec, const AttentionOptions& attention = {}) {
    EngineOptions options = TinyEngineTest::roomy();
    options.sequences = 2;
    options.attention = attention;
    options.kv.codec = codec;
    return options;
  }

  /// The least memory that can be opened with, and so many bytes more.
  EngineOptions tight(EngineOptions options, std::uint64_t more = 0) {
    options.kv.memory_bytes = std::uint64_t{32} << 10;
    while (!try_open(options).ok()) options.kv.memory_bytes += std::uint64_t{4} << 10;
    options.kv.memory_bytes += more;
    return options;
  }

  static AttentionOptions recall(bool by_layer) {
    AttentionOptions attention = small_recall();
    attention.recall_by_layer = by_layer;
    return attention;
  }
};

TEST_F(HiddenStates, NamesAreThoseOfTheCommandLine) {
  EXPECT_EQ(parse_hidden_codec("hidden-q8"), HiddenType::q8);
  EXPECT_EQ(parse_hidden_codec("hidden-f32"), HiddenType::f32);
  EXPECT_EQ(parse_hidden_codec("q8"), std::nullopt);
  EXPECT_EQ(parse_hidden_codec("hidden-q4"), std::nullopt);
}

TEST_F(HiddenStates, GiveTheBitsOfPagesThatNeverLeft) {
  for (const char* name : names) {
    SCOPED_TRACE(name);
    const test::LogitsTrace expected = decoded(**try_open(roomy(name)));
    const auto engine = try_open(tight(roomy(name)));
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    test::expect_same_trace(expected, decoded(**engine));
    const KvStats stats = (*engine)->kv_stats();
    EXPECT_GT(stats.pages_filled_from_disk, 0U);
    EXPECT_EQ(stats.pages_damaged, 0U) << "every page has the checksum of the one that left";
    EXPECT_EQ(stats.pages_filled_by_replay, 0U);
    EXPECT_LE(stats.kv_bytes_peak, stats.kv_bytes_limit);
  }
}

TEST_F(HiddenStates, InF32ChangeNoBitOfAnAnswer) {
  test::expect_same_trace(decoded(**try_open(TinyEngineTest::roomy())),
                          decoded(open(tight(roomy("hidden-f32")))));
}

TEST_F(HiddenStates, GiveTheSameBitsWithAnyThreadsAndChunks) {
  for (const char* name : names) {
    SCOPED_TRACE(name);
    const test::LogitsTrace expected = decoded(**try_open(roomy(name)));
    EngineOptions options = tight(roomy(name));
    options.threads = 3;
    options.chunk_tokens = 7;
    test::expect_same_trace(expected, decoded(**try_open(options)));
  }
}

TEST_F(HiddenStates, GiveGroupsToRecall) {
  for (const char* name : names) {
    for (const bool by_layer : {false, true}) {
      SCOPED_TRACE(std::string(name) + (by_layer ? ", by layer" : ""));
      const EngineOptions all = roomy(name, recall(by_layer));
      const test::LogitsTrace expected = decoded(**try_open(all));
      const auto engine = try_open(tight(all, std::uint64_t{layers} * 4 * 16 << 10));
      ASSERT_TRUE(engine.ok()) << engine.error().message;
      test::expect_same_trace(expected, decoded(**engine));
      const KvStats stats = (*engine)->kv_stats();
      EXPECT_GT(stats.recall_bytes_loaded, 0U);
      EXPECT_LT(stats.recall_groups_loaded, stats.recall_groups_read);
      EXPECT_EQ(stats.pages_damaged, 0U);
    }
  }
}

TEST_F(HiddenStates, ThatAreDamagedAreReplayedFromTheText) {
  const EngineOptions options = roomy("hidden-q8");
  const test::LogitsTrace expected = decoded(**try_open(options));
  Engine& engine = open(tight(options));
  const auto sequence = new_sequence(engine);
  FaultPlan plan;
  for (const std::uint64_t k : {5U, 17U, 60U, 61U}) {
    plan.push_back({.operation = EnvOperation::read,
                    .at = k,
                    .kind = FaultKind::flip_bit,
                    .bit = 8 * 4096 + k * 131});
  }
  env_.set_plan(plan);
  const auto trace = decode(engine, *sequence);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  test::expect_same_trace(expected, *trace);
  EXPECT_GT(engine.kv_stats().pages_damaged, 0U);
  EXPECT_GT(engine.kv_stats().pages_filled_by_replay, 0U);
}

TEST_F(HiddenStates, AForkGoesOnWithTheSameBits) {
  expect_fork_goes_on(open(tight(roomy("hidden-f16"), std::uint64_t{64} << 10)));
}

TEST_F(HiddenStates, ATextThatBeginsInTheMiddleOfABlockKeepsPagesInstead) {
  // The first text leaves a tail of 12 tokens, which the second one copies: the hidden states of
  // that block are not all known.
  const EngineOptions options = roomy("hidden-q8");
  const test::LogitsTrace expected = decoded(**try_open(options));
  Engine& engine = open(tight(options));
  {
    const auto first = new_sequence(engine);
    ASSERT_TRUE(first->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
  }
  test::expect_same_trace(expected, decoded(engine));
  EXPECT_GE(engine.kv_stats().tokens_reused, prompt_tokens - 1);
  EXPECT_EQ(engine.kv_stats().pages_damaged, 0U);
}

TEST_F(HiddenStates, OutliveTheProcess) {
  EngineOptions options = roomy("hidden-q8");
  const test::LogitsTrace expected = decoded(**try_open(options));
  options.kv.keep_disk = true;
  options = tight(options);
  {
    const auto engine = try_open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    ASSERT_TRUE(sequence->append(std::span(tokens_).first(prompt_tokens), nullptr, nullptr).ok());
    const auto saved = (*engine)->save_session("s", *sequence, "");
    ASSERT_TRUE(saved.ok()) << saved.error().message;
  }
  {
    const auto engine = try_open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    test::expect_same_trace(expected, decoded(**engine));
    EXPECT_GE((*engine)->kv_stats().tokens_reused, prompt_tokens / block_tokens * block_tokens);
    EXPECT_EQ((*engine)->kv_stats().pages_damaged, 0U);
  }
  std::filesystem::remove_all(disk_directory());
}

TEST_F(HiddenStates, AreKeptInMemoryToo) {
  EngineOptions options = roomy("hidden-q8");
  options.kv.type = KvType::f32;  // so that they are smaller than pages
  const test::LogitsTrace expected = decoded(**try_open(options));
  options.kv.host_percent = 50;
  options = tight(options, std::uint64_t{64} << 10);
  Engine& engine = open(options);
  test::expect_same_trace(expected, decoded(engine));
  EXPECT_GT(engine.kv_stats().pages_filled_from_host, 0U);
  EXPECT_EQ(engine.kv_stats().pages_damaged, 0U);
}

TEST_F(HiddenStates, OfAnotherLengthAreRefused) {
  const auto file = ModelFile::open(posix_env(), model_path()).value();
  const Model model = load_model(file->gguf()).value();
  const auto projector = KvProjector::create(model, HiddenType::f16, 1).value();
  const auto codec = new_hidden_codec(*projector);
  const PagePlan plan = {{block_tokens, 2, 16, KvType::i16}, block_tokens, 0, layers, 0};
  std::vector<std::byte> page(plan.shape.bytes());
  std::vector<std::byte> rows(block_tokens * codec->hidden_row_bytes());
  EXPECT_TRUE(codec->decode(plan, rows, page).ok());
  rows.pop_back();
  EXPECT_EQ(codec->decode(plan, rows, page).error().code, ErrorCode::corrupt);
  std::vector<std::byte> group(group_bytes(plan.shape));
  EXPECT_EQ(codec->decode_group(plan, 0, rows, group).error().code, ErrorCode::corrupt);
}

}  // namespace
}  // namespace headrace
