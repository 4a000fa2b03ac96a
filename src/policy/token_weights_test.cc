#include "policy/token_weights.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

/// Of texts, each a token of its own number.
std::vector<float> weights_of(const std::vector<std::string>& texts) {
  TokenWeights weights;
  std::vector<float> all;
  for (std::size_t i = 0; i < texts.size(); ++i)
    all.push_back(weights.weigh(static_cast<TokenId>(i), texts[i], false));
  return all;
}

constexpr float plain = 1;

TEST(TokenWeights, NamesHaveACapitalInsideOfASentence) {
  EXPECT_EQ(weights_of({"The", " river", " near", " Lis", "bon", ",", " said", " Ann", ".", " It"}),
            (std::vector<float>{plain, plain, plain, TokenWeights::name, plain, plain, plain,
                                TokenWeights::name, plain, plain}));
  EXPECT_EQ(weights_of({"An", " i", "Phone", "\n", "Next", "?", " Yes"}),
            std::vector<float>(7, plain))
      << "none inside of a word, nor at the beginning of a line or a sentence";
}

TEST(TokenWeights, DigitsAndControlTokensMatter) {
  EXPECT_EQ(weights_of({"in", " ", "18", "th"}),
            (std::vector<float>{plain, plain, TokenWeights::digit, plain}));
  TokenWeights weights;
  weights.weigh(1, "and", false);
  EXPECT_EQ(weights.weigh(2, "<|im_start|>", true), TokenWeights::control);
  EXPECT_EQ(weights.weigh(3, "User", false), plain) << "begins a sentence";
}

TEST(TokenWeights, RareIsWhatComesForTheFirstTimeInALongText) {
  TokenWeights weights;
  for (TokenId token = 0; token < 256; ++token) EXPECT_EQ(weights.weigh(token, "a", false), plain);
  EXPECT_EQ(weights.weigh(255, "a", false), plain);
  EXPECT_EQ(weights.weigh(256, "a", false), TokenWeights::rare);
  EXPECT_EQ(weights.weigh(256, "a", false), plain);
  EXPECT_EQ(weights.weigh(257, "7", false), TokenWeights::digit) << "the largest";
}

TEST(TokenWeights, EachTextHasItsOwn) {
  const NewTokenWeight make = new_token_weights();
  const TokenWeight first = make();
  first(1, "and", false);
  EXPECT_EQ(first(2, " Ann", false), TokenWeights::name);
  EXPECT_EQ(make()(2, " Ann", false), plain);
}

}  // namespace
}  // namespace headrace
