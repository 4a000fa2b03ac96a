// Weights of tokens: what leaves memory later than its attention says.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/runtime_test_engine.h"

namespace headrace {
namespace {

class SequenceWeights : public DecodingTest {
 protected:
  /// Memory for a step and for a part of what the steps read.
  static EngineOptions options() {
    AttentionOptions attention = small_recall();
    attention.retain_first = 0;
    EngineOptions options = tight(1, attention);
    options.kv.memory_bytes += std::uint64_t{layers} * 14 * 4 << 10;
    return options;
  }
};

TEST_F(SequenceWeights, HeavyTokensLeaveLateAndAnswersStayTheSame) {
  EngineOptions weighed = options();
  std::uint64_t left = 0;  // of tokens 96 to 111
  weighed.on_eviction = [&](const KvEviction& eviction) {
    const std::uint32_t first = eviction.first_position;
    left += std::string(eviction.reason) == "least mass" && first >= 96 && first < 112 ? 1 : 0;
  };
  const test::LogitsTrace expected = decoded(**try_open(weighed));
  ASSERT_GT(left, 0U);
  left = 0;
  weighed.token_weights = [] {
    return [at = std::make_shared<std::uint32_t>(0)](TokenId, std::string_view, bool) {
      const std::uint32_t position = (*at)++;
      return position == 100 || position == 105 ? 1e9F : 1.0F;
    };
  };
  test::expect_same_trace(expected, decoded(**try_open(weighed)));
  EXPECT_EQ(left, 0U) << "the largest weight of a group counts";
}

TEST_F(SequenceWeights, AreAskedForEachTokenOnceAndInOrder) {
  std::vector<std::vector<TokenId>> texts;
  std::vector<std::string> bytes;
  EngineOptions asked = options();
  asked.token_weights = [&] {
    texts.emplace_back();
    return [&, text = texts.size() - 1](TokenId token, std::string_view token_bytes, bool) {
      texts[text].push_back(token);
      bytes.emplace_back(token_bytes);
      return 1.0F;
    };
  };
  const auto engine = try_open(asked);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto sequence = new_sequence(**engine);
  ASSERT_TRUE(decode(**engine, *sequence).ok());
  // A prompt in between, and a step that recalls behind it.
  ASSERT_TRUE(sequence->append(test::random_tokens(40, 9), nullptr, nullptr).ok());
  ASSERT_TRUE(sequence->decode(3).ok());
  ASSERT_EQ(texts.size(), 1U);
  const std::span<const TokenId> read = sequence->tokens();
  EXPECT_TRUE(std::ranges::equal(texts[0], read.first(read.size() - 1))) << "the step's comes next";
  for (std::size_t i = 0; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], (*engine)->token_bytes(texts[0][i]));
}

TEST_F(SequenceWeights, NobodyIsAskedWhereAllIsInMemory) {
  EngineOptions all = options();
  all.kv.memory_bytes = 0;
  all.token_weights = []() -> TokenWeight {
    ADD_FAILURE();
    return [](TokenId, std::string_view, bool) { return 1.0F; };
  };
  decoded(open(all));
}

}  // namespace
}  // namespace headrace
