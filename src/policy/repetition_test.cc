#include "policy/repetition.h"

#include <gtest/gtest.h>

#include <random>

namespace headrace {
namespace {

using Tokens = std::vector<TokenId>;

/// Tokens that do not repeat.
Tokens plain(std::size_t count, TokenId first = 1000) {
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<TokenId>(i));
  return tokens;
}

void append_periods(Tokens& tokens, std::size_t count, TokenId period) {
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(i) % period);
}

TEST(Repetition, IsARunOfOneTokenOrOfAShortPeriod) {
  Tokens tokens = plain(10);
  append_periods(tokens, 64, 1);
  const Tokens rest = plain(30, 5000);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  append_periods(tokens, 100, 16);
  EXPECT_EQ(find_repetitions(tokens), (std::vector<Repetition>{{10, 64, 1}, {104, 100, 16}}));
}

TEST(Repetition, IsNothingShorterOrWithALongerPeriod) {
  EXPECT_TRUE(find_repetitions({}).empty());
  EXPECT_TRUE(find_repetitions(plain(500)).empty());
  Tokens tokens = plain(10);
  append_periods(tokens, 63, 1);
  EXPECT_TRUE(find_repetitions(tokens).empty());
  tokens = plain(10);
  append_periods(tokens, 300, 17);
  EXPECT_TRUE(find_repetitions(tokens).empty());
}

TEST(Repetition, HasTheShortestPeriodAndEndsWithTheText) {
  Tokens tokens;
  append_periods(tokens, 90, 3);
  EXPECT_EQ(find_repetitions(tokens), (std::vector<Repetition>{{0, 90, 3}})) << "not 6 or 9";
}

TEST(Repetition, OneFollowsAnother) {
  Tokens tokens;
  append_periods(tokens, 80, 1);
  for (int i = 0; i < 80; ++i) tokens.push_back(50 + i % 2);
  EXPECT_EQ(find_repetitions(tokens), (std::vector<Repetition>{{0, 80, 1}, {80, 80, 2}}));
}

TEST(Repetition, IsWhatItSaysInAnyText) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    Tokens tokens;
    while (tokens.size() < 600) {
      const std::size_t count = random() % 150;
      const auto period = static_cast<TokenId>(1 + random() % 20);
      append_periods(tokens, count, period);
      for (std::size_t i = random() % 20; i > 0; --i)
        tokens.push_back(static_cast<TokenId>(random() % 5));
    }
    std::uint32_t end = 0;
    for (const Repetition& repetition : find_repetitions(tokens)) {
      EXPECT_GE(repetition.first_token, end);
      EXPECT_GE(repetition.tokens, 64U);
      end = repetition.first_token + repetition.tokens;
      ASSERT_LE(end, tokens.size());
      for (std::uint32_t i = repetition.first_token + repetition.period; i < end; ++i)
        ASSERT_EQ(tokens[i], tokens[i - repetition.period]);
      const bool goes_on = end < tokens.size() && tokens[end] == tokens[end - repetition.period];
      EXPECT_FALSE(goes_on);
    }
  }
}

}  // namespace
}  // namespace headrace
