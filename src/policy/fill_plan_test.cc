#include "policy/fill_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace headrace {
namespace {

std::vector<BlockFill> run_of(std::size_t blocks, double compute_seconds, double load_seconds) {
  return std::vector<BlockFill>(blocks,
                                {.compute_seconds = compute_seconds, .load_seconds = load_seconds});
}

TEST(FillPlan, SplitsWhereBothLanesEnd) {
  struct Case {
    std::string what;
    std::vector<BlockFill> missing;
    std::size_t computed_blocks;
    double seconds;
  };
  const std::vector<Case> cases = {
      {"nothing is missing", {}, 0, 0},
      {"lanes of equal speed take a half each", run_of(10, 1, 1), 5, 5},
      {"loading is three times as fast", run_of(8, 3, 1), 2, 6},
      {"computing is three times as fast", run_of(8, 1, 3), 6, 6},
      {"one block goes to the faster lane", run_of(1, 2, 1), 0, 1},
      {"one block is computed at once", run_of(1, 1, 2), 1, 1},
      {"no bandwidth", run_of(4, 1, never_seconds), 4, 4},
      {"no model to compute with", run_of(4, never_seconds, 1), 0, 4},
      {"neither", run_of(4, never_seconds, never_seconds), 0, never_seconds},
      {"free loads", run_of(4, 1, 0), 0, 0},
      {"a hole that no tier has: computed, and all before it",
       {{1, 0.1}, {1, never_seconds}, {1, 0.1}, {1, 0.1}},
       2,
       2},
      {"later blocks cost more to compute", {{1, 2}, {2, 2}, {3, 2}, {4, 2}}, 2, 4},
  };
  for (const Case& c : cases) {
    const FillPlan plan = plan_fill(c.missing, 0);
    EXPECT_EQ(plan.computed_blocks, c.computed_blocks) << c.what;
    EXPECT_DOUBLE_EQ(plan.seconds, c.seconds) << c.what;
  }
}

TEST(FillPlan, IsWithinATenthOfTwoLanesThatNeverWait) {
  for (const double ratio : {0.1, 0.25, 0.5, 0.9, 1.0, 1.3, 2.0, 5.0, 10.0}) {
    for (const std::size_t blocks : {32U, 100U, 1000U}) {
      const double compute = static_cast<double>(blocks);
      const double load = compute * ratio;
      const FillPlan plan = plan_fill(run_of(blocks, 1, ratio), 0);
      EXPECT_LE(plan.seconds, 1.1 / (1 / compute + 1 / load)) << ratio << ", " << blocks;
    }
  }
}

TEST(FillPlan, TwoLanesOfEqualSpeedAreTwiceAsFastAsOne) {
  EXPECT_LE(plan_fill(run_of(64, 1, 1), 0).seconds, 64 / 1.8);
}

TEST(FillPlan, NoOtherSplitIsFaster) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> seconds(0, 10);
  for (int round = 0; round < 200; ++round) {
    std::vector<BlockFill> missing(1 + random() % 20);
    for (BlockFill& block : missing) block = {seconds(random), seconds(random)};
    const FillPlan plan = plan_fill(missing, 0);
    for (std::size_t split = 0; split <= missing.size(); ++split) {
      double compute = 0;
      double load = 0;
      for (std::size_t i = 0; i < missing.size(); ++i) {
        (i < split ? compute : load) +=
            i < split ? missing[i].compute_seconds : missing[i].load_seconds;
      }
      EXPECT_LE(plan.seconds, std::max(compute, load) + 1e-9);
      if (split == plan.computed_blocks) {
        EXPECT_NEAR(plan.seconds, std::max(compute, load), 1e-9);
      }
    }
  }
}

TEST(FillPlan, LoadsOnlyWhereThatSavesEnough) {
  // The best split saves 1 of 20 blocks, 5 %.
  const std::vector<BlockFill> missing = run_of(20, 1, 15);
  EXPECT_EQ(plan_fill(missing, 0.04).computed_blocks, 19U);
  EXPECT_EQ(plan_fill(missing, 0.06).computed_blocks, 20U);
  EXPECT_EQ(plan_fill(missing, 0.06).seconds, 20);
  EXPECT_EQ(plan_fill(run_of(4, never_seconds, 1), 0.5).computed_blocks, 0U)
      << "what cannot be computed is loaded";
}

TEST(FillCosts, NothingIsKnownBeforeItIsMeasured) {
  const FillCosts costs;
  EXPECT_EQ(costs.load_seconds(0, 1), never_seconds);
  EXPECT_EQ(costs.compute_seconds(0, 1), never_seconds);
}

TEST(FillCosts, LearnsEachTierByItself) {
  FillCosts costs;
  costs.measure_load(0, 1000, 1);
  costs.measure_load(2, 1000, 10);
  EXPECT_DOUBLE_EQ(costs.load_seconds(0, 500), 0.5);
  EXPECT_DOUBLE_EQ(costs.load_seconds(2, 500), 5);
  EXPECT_EQ(costs.load_seconds(1, 500), never_seconds);
}

TEST(FillCosts, FollowsWhatItMeasures) {
  FillCosts costs;
  costs.measure_load(0, 100, 1);
  for (int i = 0; i < 20; ++i) costs.measure_load(0, 100, 3);
  EXPECT_NEAR(costs.load_seconds(0, 100), 3, 0.1);
  costs.measure_load(0, 100, 30);
  EXPECT_LT(costs.load_seconds(0, 100), 10) << "one slow read is not the rule";
}

TEST(FillCosts, MeasurementsOfNothingSayNothing) {
  FillCosts costs;
  costs.measure_load(0, 0, 1);
  costs.measure_load(0, 100, 0);
  costs.measure_load(0, 100, -1);
  costs.measure_load(0, 100, std::nan(""));
  EXPECT_EQ(costs.load_seconds(0, 1), never_seconds);
}

TEST(FillCosts, TakesTheNearestPositionThatWasMeasured) {
  FillCosts costs;
  costs.measure_compute(100, 10, 1);
  costs.measure_compute(20'000, 10, 4);
  EXPECT_DOUBLE_EQ(costs.compute_seconds(0, 10), 1);
  EXPECT_DOUBLE_EQ(costs.compute_seconds(1500, 10), 1) << "one range away, the other is four";
  EXPECT_DOUBLE_EQ(costs.compute_seconds(16'500, 5), 2);
  EXPECT_DOUBLE_EQ(costs.compute_seconds(4'000'000'000, 10), 4) << "the last range has no end";
}

using FillCostsDeathTest = testing::Test;

TEST(FillCostsDeathTest, ATierThatIsNotThereEndsTheProcess) {
  FillCosts costs;
  EXPECT_DEATH(costs.measure_load(FillCosts::most_tiers, 1, 1), "a tier that is not known");
}

}  // namespace
}  // namespace headrace
