// Engines that keep nothing but the text of what leaves memory: the same bits, computed again.
#include <gtest/gtest.h>

#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class Recipe : public DecodingTest {
 protected:
  static constexpr std::uint32_t sequences = 3;

  /// Memory for one of them and a half.
  EngineOptions options(const std::string& model = model_path(),
                        const AttentionOptions& attention = {}) {
    EngineOptions options = roomy();
    options.model_path = model;
    options.sequences = sequences;
    options.attention = attention;
    options.kv.reuse = false;
    options.kv.memory_bytes = (*try_open(options))->kv_stats().kv_bytes_limit / 2;
    options.kv.evicted = "recipe";
    return options;
  }

  std::vector<TokenId> text(std::uint64_t seed) const {
    return test::random_tokens(prompt_tokens + 60, seed);
  }

  test::LogitsTrace expected(const EngineOptions& options, const std::vector<TokenId>& tokens) {
    EngineOptions all = options;
    all.kv.memory_bytes = 0;
    const auto engine = try_open(all);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = new_sequence(**engine);
    test::LogitsTrace trace;
    EXPECT_TRUE(sequence->append(std::span(tokens).first(prompt_tokens), nullptr, nullptr).ok());
    for (const TokenId token : std::span(tokens).subspan(prompt_tokens)) {
      EXPECT_TRUE(sequence->decode(token).ok());
      trace.push_back(hash_bytes(std::as_bytes(sequence->logits())));
    }
    return trace;
  }

  /// Three texts take turns, some tokens at a time, in memory for one and a half of them.
  void expect_turns_change_nothing(const EngineOptions& options) {
    const auto engine = try_open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    std::vector<std::vector<TokenId>> texts;
    std::vector<std::unique_ptr<Sequence>> open;
    std::vector<test::LogitsTrace> traces(sequences);
    for (std::uint64_t i = 0; i < sequences; ++i) {
      texts.push_back(text(100 + i));
      open.push_back(new_sequence(**engine));
      const auto read = open[i]->append(std::span(texts[i]).first(prompt_tokens), nullptr, nullptr);
      ASSERT_TRUE(read.ok()) << read.error().message;
    }
    constexpr std::uint32_t turn = 20;
    for (std::uint32_t first = prompt_tokens; first < texts[0].size(); first += turn) {
      for (std::size_t i = 0; i < sequences; ++i) {
        for (std::uint32_t token = first; token < first + turn; ++token) {
          const auto decoded = open[i]->decode(texts[i][token]);
          ASSERT_TRUE(decoded.ok()) << decoded.error().message;
          traces[i].push_back(hash_bytes(std::as_bytes(open[i]->logits())));
        }
      }
    }
    const KvStats stats = (*engine)->kv_stats();
    EXPECT_GT(stats.recomputations, 0U);
    EXPECT_GT(stats.recomputed_tokens, 0U);
    EXPECT_GT(stats.pages_filled_by_replay, 0U);
    EXPECT_EQ(stats.pages_written, 0U);
    EXPECT_EQ(stats.pages_filled_from_disk, 0U);
    EXPECT_LE(stats.kv_bytes_peak, stats.kv_bytes_limit);
    for (std::size_t i = 0; i < sequences; ++i) {
      SCOPED_TRACE("text " + std::to_string(i));
      test::expect_same_trace(expected(options, texts[i]), traces[i]);
    }
  }
};

TEST_F(Recipe, TextsThatTakeTurnsHaveTheBitsThatTheyHaveAlone) {
  expect_turns_change_nothing(options());
}

TEST_F(Recipe, SoHaveThoseOfAModelWithWindows) {
  test::TemporaryDirectory directory;
  const std::string path = directory.path_of("windows.gguf");
  test::TinyModelOptions model = test::tiny_model_options("gemma3", GGML_TYPE_F32);
  model.trained_context = 1024;
  ASSERT_TRUE(test::write_tiny_model(path, model).ok());
  expect_turns_change_nothing(options(path));
}

TEST_F(Recipe, SoHaveThoseWhosePagesALossyCodecDefines) {
  EngineOptions with_codec = options();
  with_codec.kv.codec = "q8";
  expect_turns_change_nothing(with_codec);
}

TEST_F(Recipe, InRecallWhatWasDrawnStaysAndTheRestIsComputedAgain) {
  AttentionOptions attention;
  attention.mode = AttentionMode::recall;
  attention.recall_tokens = 64;
  attention.recall_first = 4;
  attention.recall_newest = 16;
  expect_turns_change_nothing(options(model_path(), attention));
}

TEST_F(Recipe, OnlyOneOfThoseThatDoNotFitTogetherTakesPartInAStep) {
  const EngineOptions both = options();
  const std::vector<std::vector<TokenId>> texts = {text(100), text(101)};
  Engine& engine = open(both);
  const auto first = new_sequence(engine);
  const auto second = new_sequence(engine);
  const std::vector<SequenceStep> steps = {{first.get(), texts[0]}, {second.get(), texts[1]}};
  const auto read = engine.append_together(steps);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const TokenId next[] = {texts[0][7]};
  const std::vector<SequenceStep> more = {{first.get(), next}, {second.get(), next}};
  ASSERT_TRUE(engine.append_together(more).ok());
  EXPECT_GT(engine.kv_stats().recomputed_tokens, 0U);
  EngineOptions all = both;
  all.kv.memory_bytes = 0;
  const auto roomy = try_open(all);
  const Sequence* const sequences_read[] = {first.get(), second.get()};
  for (int i = 0; i < 2; ++i) {
    const auto alone = new_sequence(**roomy);
    ASSERT_TRUE(alone->append(texts[i], nullptr, nullptr).ok());
    ASSERT_TRUE(alone->append(next, nullptr, nullptr).ok());
    EXPECT_TRUE(std::ranges::equal(alone->logits(), sequences_read[i]->logits()));
  }
}

TEST_F(Recipe, ATextThatDoesNotFitByItselfIsToldSoAndCanGoOnWithMoreMemory) {
  EngineOptions small = options();
  small.kv.memory_bytes = small.kv.memory_bytes / 2;
  Engine& engine = open(small);
  const auto sequence = new_sequence(engine);
  const std::vector<TokenId> tokens = test::random_tokens(500, 8);
  const auto read = sequence->append(tokens, nullptr, nullptr);
  ASSERT_FALSE(read.ok());
  expect_helpful(read.error(), ErrorCode::out_of_budget, "--kv-evicted demote");
  const std::size_t before = sequence->tokens().size();
  EXPECT_GT(before, 0U);
  ASSERT_TRUE(engine.set_kv_memory(small.kv.memory_bytes * 3).ok());
  const auto rest = sequence->append(std::span(tokens).subspan(before), nullptr, nullptr);
  ASSERT_TRUE(rest.ok()) << rest.error().message;
  test::expect_same_trace({expected_trace(tokens).back()},
                          {hash_bytes(std::as_bytes(sequence->logits()))});
}

TEST_F(Recipe, AForkGoesOnWithTheSameBits) { expect_fork_goes_on(open(options())); }

TEST_F(Recipe, OptionsThatCannotBeUsedAreRefused) {
  EngineOptions with_disk = options();
  with_disk.kv.keep_disk = true;
  expect_refused(with_disk, "--kv-evicted recipe");
  EngineOptions unknown = options();
  unknown.kv.evicted = "hidden";
  expect_refused(unknown, "'hidden'");
}

}  // namespace
}  // namespace headrace
