// The conformance suite of cache policies, which every kind passes, and what each kind is for.
#include "policy/cache_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "policy/ghost_list.h"

namespace headrace {
namespace {

bool anything(BlockId /*block*/) { return true; }

/// Admits a chain of `blocks` blocks, named from `first` on.
void admit_chain(CachePolicy& policy, BlockId first, std::uint32_t blocks, BlockFacts facts = {}) {
  for (std::uint32_t i = 0; i < blocks; ++i) {
    facts.parent = i == 0 ? 0 : first + i - 1;
    facts.depth = i;
    policy.admit(first + i, facts);
  }
}

/// The order in which all that may leave does.
std::vector<BlockId> drain(CachePolicy& policy, const MayLeave& may_leave = anything) {
  std::vector<BlockId> order;
  while (const auto victim = policy.victim(may_leave)) {
    if (!order.empty() && order.back() == *victim) break;  // it does not let go
    order.push_back(*victim);
    policy.forget(*victim);
  }
  return order;
}

class CachePolicyConformance : public testing::TestWithParam<CachePolicyKind> {
 protected:
  std::unique_ptr<CachePolicy> policy_ = new_cache_policy(GetParam(), 16);
};

TEST_P(CachePolicyConformance, IsFoundByItsName) {
  EXPECT_EQ(parse_cache_policy(to_string(GetParam())), GetParam());
}

TEST_P(CachePolicyConformance, NamesNothingWhenTheCacheIsEmpty) {
  EXPECT_EQ(policy_->victim(anything), std::nullopt);
  policy_->begin_request();
  EXPECT_EQ(policy_->victim(anything), std::nullopt);
}

TEST_P(CachePolicyConformance, IgnoresBlocksThatItDoesNotKnow) {
  policy_->touch(7);
  policy_->forget(7);
  EXPECT_EQ(policy_->victim(anything), std::nullopt);
  policy_->begin_request();
  policy_->admit(7, {});
  policy_->forget(7);
  policy_->touch(7);
  policy_->forget(7);
  EXPECT_EQ(policy_->victim(anything), std::nullopt);
}

TEST_P(CachePolicyConformance, TheVictimStaysUntilItIsForgotten) {
  policy_->begin_request();
  admit_chain(*policy_, 1, 3);
  admit_chain(*policy_, 11, 3);
  const auto victim = policy_->victim(anything);
  ASSERT_TRUE(victim);
  EXPECT_EQ(policy_->victim(anything), victim);
  policy_->forget(*victim);
  EXPECT_NE(policy_->victim(anything), victim);
}

TEST_P(CachePolicyConformance, ChildrenLeaveBeforeTheirParents) {
  policy_->begin_request();
  admit_chain(*policy_, 1, 4);
  policy_->begin_request();
  for (const BlockId block : {1U, 2U}) policy_->touch(block);
  policy_->admit(20, {.parent = 2, .depth = 2});
  const std::vector<BlockId> order = drain(*policy_);
  ASSERT_EQ(order.size(), 5U);
  const auto at = [&](BlockId block) {
    return std::find(order.begin(), order.end(), block) - order.begin();
  };
  EXPECT_LT(at(4), at(3));
  EXPECT_LT(at(3), at(2));
  EXPECT_LT(at(20), at(2));
  EXPECT_EQ(order.back(), 1U);
}

TEST_P(CachePolicyConformance, AParentMayComeAfterItsChild) {
  policy_->begin_request();
  policy_->admit(2, {.parent = 1, .depth = 1});
  policy_->admit(1, {});
  EXPECT_EQ(drain(*policy_), (std::vector<BlockId>{2, 1}));
}

TEST_P(CachePolicyConformance, AParentThatIsGoneLeavesItsChildAlone) {
  policy_->begin_request();
  admit_chain(*policy_, 1, 3);
  policy_->forget(1);
  policy_->begin_request();
  policy_->touch(2);
  policy_->forget(2);
  policy_->admit(1, {});
  std::vector<BlockId> order = drain(*policy_);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, (std::vector<BlockId>{1, 3}));
}

TEST_P(CachePolicyConformance, BlocksThatMayNotLeaveKeepTheirParentsToo) {
  policy_->begin_request();
  admit_chain(*policy_, 1, 3);
  admit_chain(*policy_, 11, 2);
  const std::vector<BlockId> order = drain(*policy_, [](BlockId block) { return block != 3; });
  EXPECT_EQ(order, (std::vector<BlockId>{12, 11}));
}

TEST_P(CachePolicyConformance, AHigherPriorityLeavesLater) {
  for (const std::uint32_t priority : {2U, 0U, 1000U, 1U}) {
    policy_->begin_request();
    policy_->admit(1 + priority, {.priority = priority});
    policy_->begin_request();
    // Uses do not make up for it.
    if (priority == 0) policy_->touch(1);
  }
  EXPECT_EQ(drain(*policy_), (std::vector<BlockId>{1, 2, 3, 1001}));
}

TEST_P(CachePolicyConformance, NamesEveryBlockOnceWhenAllAreLetGo) {
  std::vector<BlockId> expected;
  for (BlockId chain = 1; chain <= 5; ++chain) {
    policy_->begin_request();
    admit_chain(*policy_, chain * 10, 5);
    for (BlockId i = 0; i < 5; ++i) expected.push_back(chain * 10 + i);
  }
  std::vector<BlockId> order = drain(*policy_);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, expected);
}

/// Requests over a few hundred texts that share beginnings, against a cache of `capacity` blocks.
/// Calls check(victim, present) before each victim leaves.
template <typename Check>
std::vector<BlockId> random_use(CachePolicy& policy, unsigned seed, int requests,
                                std::size_t capacity, const Check& check) {
  std::mt19937 random(seed);
  const auto below = [&random](std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(random);
  };
  std::map<BlockId, BlockId> present;  // and the parent of each
  std::vector<BlockId> victims;
  for (int request = 0; request < requests; ++request) {
    policy.begin_request();
    const std::uint32_t text = std::min(below(300), below(300));
    const std::uint32_t length = 1 + below(10);
    std::vector<BlockId> used;
    BlockId parent = 0;
    for (std::uint32_t i = 0; i < length; ++i) {
      const BlockId block = 1 + i * 1000 + text / (i == 0 ? 100 : i == 1 ? 10 : 1);
      const auto may_leave = [&](BlockId other) {
        return std::find(used.begin(), used.end(), other) == used.end();
      };
      used.push_back(block);
      if (present.contains(block)) {
        policy.touch(block);
      } else {
        if (present.size() >= capacity) {
          const auto victim = policy.victim(may_leave);
          if (!victim) break;
          EXPECT_TRUE(may_leave(*victim));
          check(*victim, present);
          policy.forget(*victim);
          present.erase(*victim);
          victims.push_back(*victim);
        }
        policy.admit(block, {.parent = parent,
                             .depth = i,
                             .bytes = 1 + below(3),
                             .restore_seconds = 0.5 * (1 + below(4)),
                             .priority = below(50) == 0 ? 1U : 0U,
                             .is_tail = i + 1 == length});
        present[block] = parent;
      }
      parent = block;
      if (below(200) == 0 && !present.empty()) {
        // The caller deletes something, whatever hangs on it.
        const BlockId deleted =
            std::next(present.begin(), below(static_cast<std::uint32_t>(present.size())))->first;
        if (may_leave(deleted)) {
          policy.forget(deleted);
          present.erase(deleted);
        }
      }
    }
  }
  return victims;
}

TEST_P(CachePolicyConformance, NamesOnlyLeavesOfTheCacheOverRandomUse) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  const auto victims =
      random_use(*policy_, seed, 3000, 16, [](BlockId victim, const auto& present) {
        ASSERT_TRUE(present.contains(victim)) << "a block that is not in the cache";
        for (const auto& [block, parent] : present) {
          ASSERT_NE(parent, victim) << "a block with children in the cache";
        }
      });
  EXPECT_GT(victims.size(), 1000U);
}

TEST_P(CachePolicyConformance, TheSameCallsGiveTheSameVictims) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  const auto twin = new_cache_policy(GetParam(), 16);
  const auto nothing = [](BlockId /*victim*/, const auto& /*present*/) {};
  EXPECT_EQ(random_use(*policy_, seed, 1500, 16, nothing),
            random_use(*twin, seed, 1500, 16, nothing));
}

TEST_P(CachePolicyConformance, WhatItRemembersIsBounded) {
  for (BlockId block = 1; block <= 20'000; ++block) {
    policy_->begin_request();
    if (block > 16) policy_->forget(*policy_->victim(anything));
    policy_->admit(block, {.parent = block % 5 == 0 ? block - 1 : 0});
    ASSERT_LE(policy_->notes(), 17 * most_notes_per_block(GetParam()));
  }
}

TEST_P(CachePolicyConformance, ABlockCanComeBack) {
  for (int round = 0; round < 50; ++round) {
    policy_->begin_request();
    policy_->admit(5, {});
    EXPECT_EQ(drain(*policy_), (std::vector<BlockId>{5}));
  }
}

using CachePolicyConformanceDeathTest = CachePolicyConformance;

TEST_P(CachePolicyConformanceDeathTest, AdmittingABlockTwiceEndsTheProcess) {
  policy_->begin_request();
  policy_->admit(1, {});
  EXPECT_DEATH(policy_->admit(1, {}), "a block is admitted twice");
}

const auto kind_name = [](const auto& test) { return std::string(to_string(test.param)); };
INSTANTIATE_TEST_SUITE_P(Kinds, CachePolicyConformance, testing::ValuesIn(cache_policy_kinds),
                         kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, CachePolicyConformanceDeathTest,
                         testing::ValuesIn(cache_policy_kinds), kind_name);

TEST(CachePolicy, AnUnknownNameIsNone) { EXPECT_EQ(parse_cache_policy("mru"), std::nullopt); }

// ----------------------------------------------------------------------------------------- kinds

TEST(LruPolicy, TheBlockThatWasNotUsedForLongestGoesFirst) {
  const auto policy = new_cache_policy(CachePolicyKind::lru, 8);
  for (const BlockId block : {1U, 2U, 3U}) {
    policy->begin_request();
    policy->admit(block, {});
  }
  policy->begin_request();
  policy->touch(1);
  EXPECT_EQ(drain(*policy), (std::vector<BlockId>{2, 3, 1}));
}

TEST(LruPolicy, OfOneRequestTheEndOfTheTextGoesFirst) {
  const auto policy = new_cache_policy(CachePolicyKind::lru, 8);
  policy->begin_request();
  admit_chain(*policy, 1, 3);
  EXPECT_EQ(drain(*policy), (std::vector<BlockId>{3, 2, 1}));
}

TEST(FifoPolicy, UsesChangeNothing) {
  const auto policy = new_cache_policy(CachePolicyKind::fifo, 8);
  for (const BlockId block : {1U, 2U}) {
    policy->begin_request();
    policy->admit(block, {});
  }
  policy->touch(1);
  EXPECT_EQ(drain(*policy), (std::vector<BlockId>{1, 2}));
}

TEST(S3FifoPolicy, WhatIsNotUsedAgainLeavesBeforeWhatIs) {
  const auto policy = new_cache_policy(CachePolicyKind::s3fifo, 20);
  policy->begin_request();
  for (const BlockId block : {1U, 2U}) policy->admit(block, {});
  for (int use = 0; use < 2; ++use) policy->touch(1);
  for (BlockId block = 3; block <= 6; ++block) {
    policy->begin_request();
    policy->admit(block, {});
  }
  EXPECT_EQ(policy->victim(anything), 2U);
  policy->forget(2);
  // The small queue holds a tenth, two blocks, before the main one has its turn.
  EXPECT_EQ(drain(*policy), (std::vector<BlockId>{3, 4, 1, 5, 6}));
}

TEST(S3FifoPolicy, WhatLeftTooEarlyComesBackIntoTheMainQueue) {
  const auto policy = new_cache_policy(CachePolicyKind::s3fifo, 10);
  policy->begin_request();
  policy->admit(1, {});
  policy->forget(1);
  policy->begin_request();
  policy->admit(1, {});
  policy->begin_request();
  for (const BlockId block : {2U, 3U}) policy->admit(block, {});
  EXPECT_EQ(policy->victim(anything), 2U) << "newer, but in the small queue";
}

TEST(LrfuPolicy, UsesCountAndFade) {
  const auto policy = new_cache_policy(CachePolicyKind::lrfu, 8);
  policy->begin_request();
  for (const BlockId block : {1U, 2U}) policy->admit(block, {});
  policy->begin_request();
  policy->touch(1);
  policy->begin_request();
  policy->admit(3, {});
  EXPECT_EQ(policy->victim(anything), 2U);
  policy->forget(2);
  EXPECT_EQ(policy->victim(anything), 3U) << "one use now is less than two a moment ago";
  for (int i = 0; i < 2000; ++i) policy->begin_request();
  policy->admit(4, {});
  policy->forget(3);
  EXPECT_EQ(policy->victim(anything), 1U) << "two uses long ago are less than one now";
}

TEST(LrfuPolicy, RemembersUsesOfABlockThatLeft) {
  const auto policy = new_cache_policy(CachePolicyKind::lrfu, 8);
  policy->begin_request();
  policy->admit(1, {});
  policy->forget(1);
  policy->begin_request();
  for (const BlockId block : {1U, 2U}) policy->admit(block, {});
  EXPECT_EQ(policy->victim(anything), 2U);
}

TEST(CostPolicy, WhatCostsMoreToRestoreLeavesLater) {
  const auto policy = new_cache_policy(CachePolicyKind::cost, 8);
  policy->begin_request();
  policy->admit(1, {.bytes = 10, .restore_seconds = 4});
  policy->admit(2, {.bytes = 10, .restore_seconds = 1});
  policy->admit(3, {.bytes = 100, .restore_seconds = 4});
  EXPECT_EQ(drain(*policy), (std::vector<BlockId>{3, 2, 1}));
}

TEST(CostPolicy, LearnsThatTailsAreNotUsedAgainAndKeepsOlderBlocks) {
  const auto policy = new_cache_policy(CachePolicyKind::cost, 4000);
  for (BlockId request = 0; request < 600; ++request) {
    policy->begin_request();
    // Full blocks are used again after 20 requests, tails never.
    if (request >= 20) {
      for (BlockId i = 1; i <= 4; ++i) policy->touch((request - 20) * 10 + i);
    }
    for (BlockId i = 1; i <= 4; ++i) policy->admit(request * 10 + i, {});
    policy->admit(request * 10 + 5, {.is_tail = true});
  }
  const auto victim = policy->victim([](BlockId block) { return block > 5900; });
  ASSERT_TRUE(victim);
  EXPECT_EQ(*victim % 10, 5U) << "a tail, though full blocks are as old";
}

/// Requests of two kinds: `chats` chats that come back after 60 requests, and texts that come once.
std::uint64_t chat_hits(CachePolicyKind kind) {
  constexpr std::size_t capacity = 2000;
  const auto policy = new_cache_policy(kind, capacity);
  std::map<BlockId, std::uint64_t> present;
  std::uint64_t hits = 0;
  for (std::uint64_t request = 0; request < 4000; ++request) {
    policy->begin_request();
    const bool is_chat = request % 3 == 0;
    const std::uint64_t text = is_chat ? request % 60 : request;
    for (std::uint64_t i = 1; i <= 50; ++i) {
      const BlockId block = (is_chat ? 1'000'000 : 0) + text * 100 + i;
      if (present.contains(block)) {
        ++hits;
        policy->touch(block);
      } else {
        if (present.size() == capacity) {
          const auto victim =
              policy->victim([&](BlockId other) { return present.at(other) != request; });
          if (!victim) break;
          policy->forget(*victim);
          present.erase(*victim);
        }
        policy->admit(
            block, {.parent = i == 1 ? 0 : block - 1, .depth = static_cast<std::uint32_t>(i - 1)});
      }
      present[block] = request;
    }
  }
  return hits;
}

TEST(AutomaticPolicy, KeepsWhatComesBackWhereTheLeastRecentlyUsedIsTheWorstChoice) {
  // 20 chats of 50 blocks fit twice, but between two visits of one pass 3000 blocks.
  const std::uint64_t lru = chat_hits(CachePolicyKind::lru);
  const std::uint64_t automatic = chat_hits(CachePolicyKind::automatic);
  EXPECT_EQ(lru, 0U);
  EXPECT_GT(automatic, 4000U / 3 * 50 * 7 / 10);
}

/// Half of the texts are used again ten requests later, the others never, but those cost a hundred
/// times as much to restore.
std::uint64_t hits_of_cheap_texts(CachePolicyKind kind) {
  constexpr std::size_t capacity = 40;
  const auto policy = new_cache_policy(kind, capacity);
  std::map<BlockId, std::uint64_t> present;
  std::uint64_t hits = 0;
  for (std::uint64_t request = 1; request <= 5000; ++request) {
    policy->begin_request();
    const auto use = [&](BlockId block, double restore_seconds) {
      if (present.contains(block)) {
        ++hits;
        policy->touch(block);
      } else {
        if (present.size() == capacity) {
          const auto victim =
              policy->victim([&](BlockId other) { return present.at(other) != request; });
          policy->forget(*victim);
          present.erase(*victim);
        }
        policy->admit(block, {.restore_seconds = restore_seconds});
      }
      present[block] = request;
    };
    if (request > 10) use(2 * (request - 10), 1);
    use(2 * request, 1);
    use(2 * request + 1, 100);
  }
  return hits;
}

TEST(AutomaticPolicy, LeavesAPolicyThatLosesForOneThatLeads) {
  const std::uint64_t lru = hits_of_cheap_texts(CachePolicyKind::lru);
  EXPECT_EQ(lru, 4990U);
  EXPECT_LT(hits_of_cheap_texts(CachePolicyKind::cost), lru * 80 / 100) << "dear texts fill it";
  EXPECT_GT(hits_of_cheap_texts(CachePolicyKind::automatic), lru * 85 / 100);
}

TEST(GhostList, ForgetsTheOldestOfThoseThatAreTooMany) {
  GhostList<int> ghosts(2);
  for (const int block : {1, 2, 3}) ghosts.put(static_cast<BlockId>(block), block * 10);
  EXPECT_EQ(ghosts.take(1), std::nullopt);
  EXPECT_EQ(ghosts.take(2), 20);
  EXPECT_EQ(ghosts.take(2), std::nullopt);
  EXPECT_EQ(ghosts.take(3), 30);
}

}  // namespace
}  // namespace headrace
