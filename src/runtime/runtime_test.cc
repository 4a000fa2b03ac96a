#include "runtime/runtime.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

using RuntimeTest = TinyEngineTest;

constexpr std::size_t prompt_tokens = 100;
constexpr std::size_t more_tokens = 10;
constexpr std::uint64_t header_bits = 4096 * 8;  // of a stored page: docs/formats/page.md

TEST_F(RuntimeTest, TellsWhatItOpened) {
  Engine& engine = open(roomy());
  EXPECT_EQ(engine.model().layers, layers);
  EXPECT_EQ(engine.model().vocabulary, 288U);
  EXPECT_EQ(engine.context(), context);
  EXPECT_EQ(engine.token_bytes('A'), "A");
  EXPECT_TRUE(engine.is_end_of_generation(test::tiny_model_end_token));
  EXPECT_FALSE(engine.is_end_of_generation('A'));
  EXPECT_STRNE(engine.instruction_set(), "");
  EXPECT_FALSE(engine.tokenize("some text", {})->empty());
}

TEST_F(RuntimeTest, GivesTheSameLogitsWithTheLeastMemory) {
  const std::vector<TokenId> tokens = test::random_tokens(200, 1);
  Engine& engine = open(tight());
  const auto sequence = new_sequence(engine);
  test::LogitsTrace trace;
  ASSERT_TRUE(test::append_traced(engine, *sequence, tokens, 23, trace).ok());
  test::expect_same_trace(expected_trace(tokens), trace);
  EXPECT_GT(engine.kv_stats().pages_filled_from_disk, 0U);
  EXPECT_EQ(engine.kv_stats().pages_filled_by_replay, 0U);
}

TEST_F(RuntimeTest, PagesThatEncodingMakesNoSmallerHaveTheMemoryOfTheHostTierInThePool) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path_of("wide.gguf");
  ASSERT_TRUE(test::write_tiny_model(path, {.layers = layers, .head_dim = 32}).ok());
  const std::vector<TokenId> tokens = test::random_tokens(1800, 3);
  const auto stats = [&](KvType type, const std::string& codec, const std::string& host_codec,
                         std::uint32_t host_percent) {
    EngineOptions options = roomy();
    options.model_path = path;
    options.context = 2048;
    options.sequences = 1;
    options.kv.type = type;
    options.kv.codec = codec;
    options.kv.host_codec = host_codec;
    options.kv.memory_bytes = 1 << 20;
    options.kv.host_percent = host_percent;
    const auto engine = try_open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    test::LogitsTrace trace;
    EXPECT_TRUE(test::append_traced(**engine, *sequence, tokens, 0, trace).ok());
    return (*engine)->kv_stats();
  };
  EXPECT_GT(stats(KvType::i16, "raw", "lossless", 50).pages_filled_from_host, 0U);
  EXPECT_GT(stats(KvType::q8, "q4", "lossless", 50).pages_filled_from_host, 0U);
  EXPECT_EQ(stats(KvType::i16, "q4", "raw", 50).pages_filled_from_host, 0U);
  for (const char* codec : {"raw", "q8"}) {
    const KvStats with = stats(KvType::q8, codec, "lossless", 50);
    const KvStats without = stats(KvType::q8, codec, "lossless", 0);
    EXPECT_EQ(with.pages_filled_from_host, 0U) << codec;
    EXPECT_GT(with.pages_filled_from_disk, 0U) << codec << ": not everything fits";
    EXPECT_EQ(with.pages_filled_from_disk, without.pages_filled_from_disk) << codec;
  }
}

/// Damaged and failed loads in the middle of a sequence. Each case reads a prompt in peace, then a
/// few more tokens, one by one, under a plan.
class RuntimeReplay : public TinyEngineTest {
 protected:
  RuntimeReplay()
      : tokens_(test::random_tokens(prompt_tokens + more_tokens, 2)),
        expected_(expected_trace(tokens_)) {}

  Result<void> read_under(Engine& engine, FaultPlan plan) {
    const auto sequence = new_sequence(engine);
    test::LogitsTrace trace;
    const auto prompt = std::span(tokens_).first(prompt_tokens);
    HEADRACE_TRY(test::append_traced(engine, *sequence, prompt, 0, trace));
    env_.set_plan(std::move(plan));
    const auto more = std::span(tokens_).subspan(prompt_tokens);
    const auto outcome = test::append_traced(engine, *sequence, more, 1, trace);
    env_.set_plan({});
    // Whatever came out before an error is right.
    test::LogitsTrace expected = expected_;
    expected.resize(trace.size());
    test::expect_same_trace(expected, trace);
    EXPECT_EQ(sequence->tokens().size(), trace.size());
    return outcome;
  }

  static Fault damaged_read(std::uint64_t k) {
    return {.operation = EnvOperation::read,
            .at = k,
            .kind = FaultKind::flip_bit,
            .bit = header_bits + k * 131};
  }

  const std::vector<TokenId> tokens_;
  const test::LogitsTrace expected_;
};

TEST_F(RuntimeReplay, RecomputesAPageThatIsDamaged) {
  Engine& engine = open(tight());
  for (const std::uint64_t k : {1U, 3U, 6U, 8U, 11U}) {
    const KvStats before = engine.kv_stats();
    const auto outcome = read_under(engine, {damaged_read(k)});
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    EXPECT_EQ(engine.kv_stats().pages_damaged, before.pages_damaged + 1);
    EXPECT_EQ(engine.kv_stats().pages_filled_by_replay, before.pages_filled_by_replay + 1);
  }
}

TEST_F(RuntimeReplay, RecomputesFirstWhatAReplayNeedsAndIsDamagedToo) {
  Engine& engine = open(tight());
  // A step reads the six sealed blocks of layer 0, then those of layer 1. Its sixth read is bad,
  // and so is one of those that follow: of the step's read-ahead, or of the replay of block 5,
  // which reads the five blocks before it.
  for (std::uint64_t second = 7; second <= 14; ++second) {
    SCOPED_TRACE("also read " + std::to_string(second));
    const std::uint64_t before = engine.kv_stats().pages_filled_by_replay;
    const auto outcome = read_under(engine, {damaged_read(6), damaged_read(second)});
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    EXPECT_EQ(engine.kv_stats().pages_filled_by_replay, before + 2);
  }
}

TEST_F(RuntimeReplay, RecomputesManyPagesThatAreDamagedAtRandom) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  Engine& engine = open(tight());
  for (int round = 0; round < 5; ++round) {
    FaultPlan plan;
    for (int i = 0; i < 12; ++i) plan.push_back(damaged_read(1 + random() % 300));
    const auto outcome = read_under(engine, plan);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  }
  EXPECT_GT(engine.kv_stats().pages_filled_by_replay, 5U);
}

TEST_F(RuntimeReplay, RecomputesPagesThatWereDamagedWhenTheyWereWritten) {
  Engine& engine = open(tight());
  const auto sequence = new_sequence(engine);
  FaultPlan plan;
  for (const std::uint64_t k : {3U, 4U, 7U, 8U}) {  // both layers of two blocks
    plan.push_back({.operation = EnvOperation::write,
                    .at = k,
                    .kind = FaultKind::flip_bit,
                    .bit = header_bits + k});
  }
  env_.set_plan(plan);
  test::LogitsTrace trace;
  const auto outcome = test::append_traced(engine, *sequence, tokens_, 0, trace);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  test::expect_same_trace(expected_, trace);
  EXPECT_EQ(engine.kv_stats().pages_filled_by_replay, 4U);
}

TEST_F(RuntimeReplay, ADiskThatStopsReadingEndsTheStepInsteadOfHangingIt) {
  Engine& engine = open(tight());
  for (std::uint64_t k = 1; k <= 14; ++k) {
    SCOPED_TRACE("from read " + std::to_string(k));
    const auto outcome =
        read_under(engine, {{.operation = EnvOperation::read, .at = k, .lasting = true}});
    ASSERT_FALSE(outcome.ok());
    expect_helpful(outcome.error(), ErrorCode::io, "--kv-disk");
  }
  EXPECT_TRUE(read_under(engine, {}).ok()) << "and when the disk is back it goes on";
}

TEST_F(RuntimeTest, ADiskThatIsFullEndsTheStepInOneLineAndKeepsWhatWasRead) {
  const std::vector<TokenId> tokens = test::random_tokens(200, 3);
  Engine& engine = open(tight());
  const auto sequence = new_sequence(engine);
  env_.set_plan({{.operation = EnvOperation::write,
                  .at = 6,
                  .lasting = true,
                  .code = ErrorCode::out_of_budget}});
  test::LogitsTrace trace;
  const auto outcome = test::append_traced(engine, *sequence, tokens, 0, trace);
  ASSERT_FALSE(outcome.ok());
  expect_helpful(outcome.error(), ErrorCode::out_of_budget, "--kv-disk");
  EXPECT_EQ(sequence->tokens().size(), trace.size());
  EXPECT_GE(trace.size(), 32U);

  // When there is room again it goes on where it was.
  env_.set_plan({});
  const auto rest = std::span(tokens).subspan(trace.size());
  const auto later = test::append_traced(engine, *sequence, rest, 0, trace);
  ASSERT_TRUE(later.ok()) << later.error().message;
  test::expect_same_trace(expected_trace(tokens), trace);
}

TEST_F(RuntimeTest, OpensOrSaysWhyNotWhateverOperationFails) {
  ASSERT_TRUE(try_open(tight()).ok());
  env_.set_plan({});
  ASSERT_TRUE(try_open(tight()).ok());
  const std::uint64_t operations = env_.count(EnvOperation::any);
  ASSERT_GE(operations, 5U);
  for (std::uint64_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE("operation " + std::to_string(k));
    env_.set_plan({{.operation = EnvOperation::any, .at = k}});
    const auto engine = try_open(tight());
    if (engine.ok()) continue;
    expect_helpful(engine.error(), ErrorCode::io, "injected fault");
  }
}

TEST_F(RuntimeTest, AModelFileThatEndsEarlyIsRefused) {
  env_.set_plan({{.operation = EnvOperation::map, .kind = FaultKind::end_early}});
  const auto engine = try_open(tight());
  ASSERT_FALSE(engine.ok());
  expect_helpful(engine.error(), ErrorCode::corrupt, "tiny.gguf");
}

TEST_F(RuntimeTest, TooLittleMemoryIsRefusedWithASizeThatWorks) {
  EngineOptions options = tight();
  --options.kv.memory_bytes;
  const auto refused = try_open(options);
  ASSERT_FALSE(refused.ok());
  expect_helpful(refused.error(), ErrorCode::out_of_budget,
                 std::to_string(options.kv.memory_bytes / 1024 + 1) + "KiB; raise --kv-memory");
}

TEST_F(RuntimeTest, SequencesDoNotDisturbEachOther) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  EngineOptions options = tight();
  options.kv.memory_bytes += std::uint64_t{layers} * 5200;  // an open block for the second
  Engine& engine = open(options);
  const std::vector<std::vector<TokenId>> texts = {test::random_tokens(120, 4),
                                                   test::random_tokens(120, 5)};
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<test::LogitsTrace> traces(2);
  for (int i = 0; i < 2; ++i) sequences.push_back(new_sequence(engine));
  while (traces[0].size() + traces[1].size() < 240) {
    const std::size_t turn = random() % 2;
    const std::size_t left = 120 - traces[turn].size();
    const auto tokens = std::span(texts[turn]).last(left).first(std::min(left, random() % 40));
    const auto outcome = test::append_traced(engine, *sequences[turn], tokens, 0, traces[turn]);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  }
  for (std::size_t i = 0; i < 2; ++i) test::expect_same_trace(expected_trace(texts[i]), traces[i]);
}

TEST_F(RuntimeTest, AFifthSequenceIsRefused) {
  Engine& engine = open(roomy());
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 4; ++i) sequences.push_back(new_sequence(engine));
  const auto fifth = engine.new_sequence();
  ASSERT_FALSE(fifth.ok());
  expect_helpful(fifth.error(), ErrorCode::out_of_budget, "end one before starting another");
}

}  // namespace
}  // namespace headrace
