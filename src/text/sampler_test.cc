#include "text/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "text/test_model.h"

namespace headrace {
namespace {

class SamplerOfSmolLm2 : public TestWithModel {
 protected:
  std::unique_ptr<Sampler> sampler(const SamplingOptions& options) const {
    auto result = Sampler::create(*vocabulary, options);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return std::move(result).value();
  }
  std::vector<float> random_logits(unsigned seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 3.0F);
    std::vector<float> logits(vocabulary->size());
    for (float& logit : logits) logit = normal(random);
    return logits;
  }
  std::vector<TokenId> draw(const SamplingOptions& options, int count) const {
    const auto drawn_by = sampler(options);
    std::vector<TokenId> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(drawn_by->sample(random_logits(static_cast<unsigned>(i))));
      drawn_by->accept(tokens.back());
    }
    return tokens;
  }
};

TEST_F(SamplerOfSmolLm2, GreedyTakesTheGreatestLogitAndTheSmallestIdOfATie) {
  std::vector<float> logits(vocabulary->size(), -5.0F);
  logits[40000] = logits[77] = logits[300] = 2.0F;
  EXPECT_EQ(sampler({})->sample(logits), 77);
  EXPECT_EQ(sampler({.repeat_penalty = 1.1F})->sample(logits), 77);
  EXPECT_EQ(sampler({})->sample(std::vector<float>(vocabulary->size(), 0.0F)), 0);
}

TEST_F(SamplerOfSmolLm2, GreedyNeverTakesANotANumberWhileThereIsANumber) {
  std::vector<float> logits(vocabulary->size(), std::numeric_limits<float>::quiet_NaN());
  logits[9] = -1.0F;
  EXPECT_EQ(sampler({})->sample(logits), 9);
  EXPECT_EQ(sampler({.repeat_penalty = 2.0F})->sample(logits), 9);
}

TEST_F(SamplerOfSmolLm2, ARepeatPenaltyLowersTokensOfTheLast64) {
  std::vector<float> logits(vocabulary->size(), 0.0F);
  logits[10] = 2.0F;
  logits[20] = 1.9F;
  const auto penalised = sampler({.repeat_penalty = 1.5F});
  EXPECT_EQ(penalised->sample(logits), 10);
  penalised->accept(10);
  EXPECT_EQ(penalised->sample(logits), 20);
  for (int i = 0; i < 64; ++i) penalised->accept(5);
  EXPECT_EQ(penalised->sample(logits), 10) << "forgotten after 64 tokens";
}

TEST_F(SamplerOfSmolLm2, TheSameSeedDrawsTheSameTokens) {
  const SamplingOptions options = {
      .temperature = 1.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0.0F, .seed = 7};
  SamplingOptions other = options;
  other.seed = 8;
  EXPECT_EQ(draw(options, 20), draw(options, 20));
  EXPECT_NE(draw(options, 20), draw(other, 20));
}

TEST_F(SamplerOfSmolLm2, KeepingOneCandidateEqualsGreedy) {
  const std::vector<TokenId> greedy = draw({.repeat_penalty = 1.2F}, 10);
  EXPECT_EQ(draw({.temperature = 1.0F, .top_k = 1, .repeat_penalty = 1.2F, .seed = 3}, 10), greedy);
  EXPECT_EQ(draw({.temperature = 1.0F, .top_p = 0.0F, .repeat_penalty = 1.2F, .seed = 3}, 10),
            greedy);
  EXPECT_EQ(draw({.temperature = 1.0F, .min_p = 1.0F, .repeat_penalty = 1.2F, .seed = 3}, 10),
            greedy);
}

TEST_F(SamplerOfSmolLm2, OnlyTheTopKAreEverDrawn) {
  std::vector<float> logits(vocabulary->size(), 0.0F);
  logits[1] = 3.0F;
  logits[2] = 2.9F;
  const auto two =
      sampler({.temperature = 5.0F, .top_k = 2, .top_p = 1.0F, .min_p = 0.0F, .seed = 1});
  bool seen[3] = {};
  for (int i = 0; i < 100; ++i) {
    const TokenId token = two->sample(logits);
    ASSERT_TRUE(token == 1 || token == 2);
    seen[token] = true;
  }
  EXPECT_TRUE(seen[1] && seen[2]);
}

TEST_F(SamplerOfSmolLm2, OptionsOutOfRangeAreRefusedByName) {
  struct Case {
    SamplingOptions options;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{.temperature = -1.0F}, "temperature is -1; it must be 0 (greedy) or from 0.001 to 100"},
      {{.temperature = std::nanf("")},
       "temperature is nan; it must be 0 (greedy) or from 0.001 to 100"},
      {{.temperature = 1e-9F}, "temperature is 1e-09; it must be 0 (greedy) or from 0.001 to 100"},
      {{.top_k = -3}, "top-k is -3; it must be 0 (all tokens) or more"},
      {{.top_p = 1.5F}, "top-p is 1.5; it must be from 0 to 1 (all tokens)"},
      {{.min_p = -0.5F}, "min-p is -0.5; it must be from 0 (all tokens) to 1"},
      {{.repeat_penalty = 0.0F}, "repeat-penalty is 0; it must be from 0.01 to 100 (1 is off)"},
  };
  for (const Case& c : cases) {
    const auto result = Sampler::create(*vocabulary, c.options);
    ASSERT_FALSE(result.ok()) << c.message;
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(result.error().message, c.message);
  }
}

}  // namespace
}  // namespace headrace
