#include "policy/purge.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Places = std::vector<std::size_t>;

TEST(Purge, KeepsTheShareWithTheLargestMass) {
  const std::vector<PurgeItem> items = {{.mass = 0.5, .tokens = 8, .position = 0},
                                        {.mass = 0.1, .tokens = 8, .position = 8},
                                        {.mass = 0.9, .tokens = 8, .position = 16},
                                        {.mass = 0.2, .tokens = 8, .position = 24}};
  EXPECT_EQ(plan_purge(items, 1), Places{});
  EXPECT_EQ(plan_purge(items, 0.75), Places{1});
  EXPECT_EQ(plan_purge(items, 0.5), (Places{1, 3}));
  EXPECT_EQ(plan_purge(items, 0), (Places{1, 3, 0, 2}));
  EXPECT_EQ(plan_purge({}, 0), Places{});
}

TEST(Purge, CountsTokensAndNeverLetsMoreOfThemGo) {
  const std::vector<PurgeItem> items = {{.mass = 0.1, .tokens = 64, .position = 0},
                                        {.mass = 0.2, .tokens = 8, .position = 64},
                                        {.mass = 0.3, .tokens = 8, .position = 72}};
  EXPECT_EQ(plan_purge(items, 0.2F), Places{0}) << "64 of 80";
  EXPECT_EQ(plan_purge(items, 0.5F), Places{}) << "what has less mass does not leave after more";
}

TEST(Purge, WhatStaysCountsInTheShare) {
  const std::vector<PurgeItem> items = {{.mass = 0.0, .tokens = 8, .position = 0, .stays = true},
                                        {.mass = 0.2, .tokens = 8, .position = 8},
                                        {.mass = 0.1, .tokens = 8, .position = 16}};
  EXPECT_EQ(plan_purge(items, 1.0F / 3), (Places{2, 1}));
  EXPECT_EQ(plan_purge(items, 0), (Places{2, 1})) << "and stays";
}

TEST(Purge, OfEqualsTheNewestLeaveFirst) {
  const std::vector<PurgeItem> items = {
      {.tokens = 8, .position = 0}, {.tokens = 8, .position = 16}, {.tokens = 8, .position = 8}};
  EXPECT_EQ(plan_purge(items, 0), (Places{1, 2, 0}));
}

}  // namespace
}  // namespace headrace
