// The conformance suite of eviction policies: list a new one at the end of its first part.
#include "policy/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace headrace {
namespace {

struct PolicyCase {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)();
};

class EvictionPolicyConformance : public testing::TestWithParam<PolicyCase> {
 protected:
  const std::unique_ptr<EvictionPolicy> policy_ = GetParam().make();
};

TEST_P(EvictionPolicyConformance, HasNoVictimWhenNothingIsTracked) {
  EXPECT_EQ(policy_->victim(), std::nullopt);
}

TEST_P(EvictionPolicyConformance, TheOnlyPageIsTheVictim) {
  const PageId page{.block_id = 3, .block = 2, .layer = 1};
  policy_->track(page);
  EXPECT_EQ(policy_->victim(), page);
}

TEST_P(EvictionPolicyConformance, AVictimStaysTrackedUntilItIsUntracked) {
  policy_->track({.block_id = 1, .block = 0, .layer = 0});
  policy_->track({.block_id = 1, .block = 0, .layer = 1});
  const auto victim = policy_->victim();
  EXPECT_EQ(policy_->victim(), victim);
  policy_->untrack(*victim);
  EXPECT_NE(policy_->victim(), victim);
}

TEST_P(EvictionPolicyConformance, IgnoresPagesThatItDoesNotKnow) {
  policy_->untrack({.block_id = 9, .block = 9, .layer = 9});
  EXPECT_EQ(policy_->victim(), std::nullopt);
  const PageId page{.block_id = 1, .block = 4, .layer = 2};
  policy_->track(page);
  // Each differs in one part only.
  policy_->untrack({.block_id = 2, .block = 4, .layer = 2});
  policy_->untrack({.block_id = 1, .block = 5, .layer = 2});
  policy_->untrack({.block_id = 1, .block = 4, .layer = 3});
  EXPECT_EQ(policy_->victim(), page);
  policy_->untrack(page);
  policy_->untrack(page);
  EXPECT_EQ(policy_->victim(), std::nullopt);
}

TEST_P(EvictionPolicyConformance, APageCanComeBack) {
  const PageId page{.block_id = 1, .block = 0, .layer = 0};
  for (int round = 0; round < 3; ++round) {
    policy_->track(page);
    EXPECT_EQ(policy_->victim(), page);
    policy_->untrack(page);
    EXPECT_EQ(policy_->victim(), std::nullopt);
  }
}

TEST_P(EvictionPolicyConformance, NamesEveryTrackedPageOnceWhenAllAreLetGo) {
  std::set<PageId> tracked;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    for (std::uint32_t block = 0; block < 5; ++block) {
      for (std::uint32_t layer = 0; layer < 4; ++layer) {
        const PageId page{sequence, block, layer};
        policy_->track(page);
        tracked.insert(page);
      }
    }
  }
  while (const auto victim = policy_->victim()) {
    ASSERT_EQ(tracked.erase(*victim), 1U) << "not tracked, or named twice";
    policy_->untrack(*victim);
  }
  EXPECT_TRUE(tracked.empty());
}

TEST_P(EvictionPolicyConformance, AgreesWithASetOverRandomUse) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  const auto below = [&random](std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(random);
  };
  std::set<PageId> tracked;
  for (int round = 0; round < 5'000; ++round) {
    const PageId page{.block_id = below(3), .block = below(5), .layer = below(4)};
    if (below(2) == 0) {
      policy_->untrack(page);
      tracked.erase(page);
    } else if (tracked.insert(page).second) {
      policy_->track(page);
    }
    const auto victim = policy_->victim();
    ASSERT_EQ(victim.has_value(), !tracked.empty());
    if (!victim) continue;
    ASSERT_TRUE(tracked.contains(*victim)) << "a victim that is not tracked";
    if (below(4) == 0) {
      policy_->untrack(*victim);
      tracked.erase(*victim);
    }
  }
}

TEST_P(EvictionPolicyConformance, TheSameCallsGiveTheSameVictims) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  const auto below = [&random](std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(random);
  };
  const auto twin = GetParam().make();
  std::set<PageId> tracked;
  for (int round = 0; round < 1'000; ++round) {
    const PageId page{.block_id = below(2), .block = below(8), .layer = below(3)};
    if (!tracked.insert(page).second) continue;
    for (EvictionPolicy* policy : {policy_.get(), twin.get()}) policy->track(page);
    ASSERT_EQ(policy_->victim(), twin->victim());
    if (below(3) != 0) continue;
    const PageId victim = *policy_->victim();
    tracked.erase(victim);
    for (EvictionPolicy* policy : {policy_.get(), twin.get()}) policy->untrack(victim);
  }
}

using EvictionPolicyConformanceDeathTest = EvictionPolicyConformance;

TEST_P(EvictionPolicyConformanceDeathTest, TrackingAPageTwiceEndsTheProcess) {
  policy_->track({.block_id = 1, .block = 0, .layer = 0});
  EXPECT_DEATH(policy_->track({.block_id = 1, .block = 0, .layer = 0}), "a page is tracked twice");
}

constexpr PolicyCase policies[] = {{"NewestFirst", new_newest_first_policy}};
const auto case_name = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyConformance, testing::ValuesIn(policies),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyConformanceDeathTest, testing::ValuesIn(policies),
                         case_name);

// ---------------------------------------------------------------------------------------- orders

/// Order in which `policy` lets everything go.
std::vector<PageId> drain(EvictionPolicy& policy) {
  std::vector<PageId> order;
  while (const auto victim = policy.victim()) {
    if (!order.empty() && *victim == order.back()) break;  // it does not let go
    order.push_back(*victim);
    policy.untrack(*victim);
  }
  return order;
}

TEST(NewestFirstPolicy, TheNewestBlockGoesFirstAndOfItTheLastLayer) {
  const auto policy = new_newest_first_policy();
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (std::uint32_t layer = 0; layer < 2; ++layer) policy->track({1, block, layer});
  }
  const std::vector<PageId> expected = {{1, 2, 1}, {1, 2, 0}, {1, 1, 1},
                                        {1, 1, 0}, {1, 0, 1}, {1, 0, 0}};
  EXPECT_EQ(drain(*policy), expected);
}

TEST(NewestFirstPolicy, TheOrderOfTrackingDoesNotMatter) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<PageId> pages;
  for (std::uint32_t block = 0; block < 6; ++block) {
    for (std::uint32_t layer = 0; layer < 3; ++layer) pages.push_back({1, block, layer});
  }
  std::vector<PageId> expected(pages.rbegin(), pages.rend());
  std::shuffle(pages.begin(), pages.end(), random);
  const auto policy = new_newest_first_policy();
  for (const PageId& page : pages) policy->track(page);
  EXPECT_EQ(drain(*policy), expected);
}

TEST(NewestFirstPolicy, SequencesShareTheLossByTheAgeOfTheirBlocks) {
  const auto policy = new_newest_first_policy();
  for (const std::uint64_t sequence : {1U, 2U}) {
    for (std::uint32_t block = 0; block < 3; ++block) policy->track({sequence, block, 0});
  }
  const std::vector<PageId> order = drain(*policy);
  ASSERT_EQ(order.size(), 6U);
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i].block, 2 - i / 2);
}

}  // namespace
}  // namespace headrace
