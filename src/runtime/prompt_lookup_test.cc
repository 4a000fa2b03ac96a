#include "runtime/prompt_lookup.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Tokens = std::vector<TokenId>;

PromptLookup lookup_of(const Tokens& tokens) {
  PromptLookup lookup;
  for (const TokenId token : tokens) lookup.add(token);
  return lookup;
}

TEST(PromptLookup, GuessesWhatFollowedTheSameTokensBefore) {
  EXPECT_EQ(lookup_of({1, 2, 3, 4, 5, 9, 2, 3}).guess(3), (Tokens{4, 5, 9}));
  EXPECT_EQ(lookup_of({1, 2, 3, 4, 5, 9, 2, 3}).guess(1), (Tokens{4}));
}

TEST(PromptLookup, PrefersTheLongerRunAndThenTheLatestPlace) {
  EXPECT_EQ(lookup_of({1, 2, 3, 10, 7, 2, 3, 20, 1, 2, 3}).guess(1), (Tokens{10}));
  EXPECT_EQ(lookup_of({7, 2, 3, 10, 8, 2, 3, 20, 9, 2, 3}).guess(1), (Tokens{20}));
}

TEST(PromptLookup, GuessesNothingWithoutAnEarlierPlace) {
  EXPECT_EQ(lookup_of({}).guess(4), Tokens());
  EXPECT_EQ(lookup_of({1}).guess(4), Tokens());
  EXPECT_EQ(lookup_of({1, 2}).guess(4), Tokens());
  EXPECT_EQ(lookup_of({1, 2, 3, 4}).guess(4), Tokens());
  EXPECT_EQ(lookup_of({1, 2, 3, 1, 2}).guess(0), Tokens());
}

TEST(PromptLookup, TheGuessMayReachUpToTheEndOfTheText) {
  EXPECT_EQ(lookup_of({5, 5, 5}).guess(8), (Tokens{5}));
  EXPECT_EQ(lookup_of({1, 2, 1, 2}).guess(8), (Tokens{1, 2}));
}

}  // namespace
}  // namespace headrace
