#include "cli/scoring.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace headrace {
namespace {

// Logits whose probabilities are 1/2, 1/4, 1/4, up to a constant that must not matter.
constexpr float log_2 = 0.693147181F;
constexpr std::array half = {log_2 + 5, 5.0F, 5.0F};
// 1/4, 1/2, 1/4
constexpr std::array other = {-3.0F, log_2 - 3, -3.0F};

TEST(Scoring, LogProbabilitiesAreThoseOfASoftmax) {
  EXPECT_NEAR(log_probability(half, 0), std::log(0.5), 1e-6);
  EXPECT_NEAR(log_probability(half, 2), std::log(0.25), 1e-6);
}

TEST(Scoring, LargeLogitsDoNotOverflow) {
  const std::vector<float> large = {3e38F, 0, -3e38F};
  EXPECT_DOUBLE_EQ(log_probability(large, 0), 0.0);
  EXPECT_TRUE(std::isfinite(log_probability(large, 1)));
}

TEST(Scoring, DivergenceOfAHandComputedPair) {
  // 1/2 log(1/2 / 1/4) + 1/4 log(1/4 / 1/2) + 1/4 log(1) = 1/4 log 2
  EXPECT_NEAR(kl_divergence(half, other), 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(kl_divergence(half, half), 0.0, 1e-12);
}

TEST(Scoring, ATokenThatTheReferenceRulesOutAddsNothing) {
  const std::vector<float> ruled_out = {0, -std::numeric_limits<float>::infinity()};
  EXPECT_NEAR(kl_divergence(ruled_out, std::vector<float>{0, 0}), std::log(2.0), 1e-9);
}

TEST(Scoring, TiesGoToTheSmallestId) { EXPECT_EQ(likeliest(std::vector<float>{1, 4, 4}), 1); }

TEST(Scoring, PerplexityIsTheExponentialOfTheMeanSurprise) {
  Score score;
  score.add(half, 0);   // 1/2
  score.add(half, 1);   // 1/4
  score.add(other, 1);  // 1/2
  EXPECT_EQ(score.tokens(), 3U);
  EXPECT_NEAR(score.perplexity(), std::pow(2.0 * 4.0 * 2.0, 1.0 / 3.0), 1e-5);
  EXPECT_FALSE(score.compared());
}

TEST(Scoring, ComparisonsAreMeansOverPositions) {
  Score score;
  score.compare(half, half);
  score.compare(half, other);
  EXPECT_NEAR(score.kl_mean(), 0.125 * std::log(2.0), 1e-6);
  EXPECT_DOUBLE_EQ(score.same_top1(), 0.5);
}

}  // namespace
}  // namespace headrace
