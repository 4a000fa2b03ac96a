#include "policy/prefetch_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace {
namespace {

constexpr PrefetchKind all_kinds[] = {PrefetchKind::off, PrefetchKind::conservative,
                                      PrefetchKind::aggressive, PrefetchKind::learned};

class PrefetchConformance : public testing::TestWithParam<PrefetchKind> {};

TEST_P(PrefetchConformance, NeverLoadsMoreThanIsStoredOrFits) {
  const auto policy = new_prefetch_policy(GetParam());
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t stored : {0U, 1U, 7U, 100U}) {
      for (const std::size_t slots : {0U, 1U, 7U, 100U}) {
        for (const std::uint64_t visits : {0U, 1U, 10U}) {
          for (const std::uint64_t continued : {0U, 5U, 10U}) {
            EXPECT_LE(policy->blocks_ahead({stored, slots, visits, continued}),
                      std::min(stored, slots));
          }
        }
      }
    }
    policy->report(round == 0);
  }
}

TEST_P(PrefetchConformance, IsFoundByItsName) {
  EXPECT_EQ(parse_prefetch(to_string(GetParam())), GetParam());
}

TEST_P(PrefetchConformance, TheSameCallsGiveTheSameAnswers) {
  const auto policy = new_prefetch_policy(GetParam());
  const auto twin = new_prefetch_policy(GetParam());
  for (std::uint64_t i = 0; i < 100; ++i) {
    const PrefetchChance chance = {i % 9, i % 5, i % 7, i % 4};
    EXPECT_EQ(policy->blocks_ahead(chance), twin->blocks_ahead(chance));
    policy->report(i % 3 == 0);
    twin->report(i % 3 == 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefetchConformance, testing::ValuesIn(all_kinds),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(Prefetch, OffLoadsNothingAndAggressiveAllThatFits) {
  const PrefetchChance chance = {.stored_blocks = 20, .free_slots = 12, .visits = 1};
  EXPECT_EQ(new_prefetch_policy(PrefetchKind::off)->blocks_ahead(chance), 0U);
  EXPECT_EQ(new_prefetch_policy(PrefetchKind::aggressive)->blocks_ahead(chance), 12U);
}

TEST(Prefetch, ConservativeWantsAChainThatIsContinuedByHalfOfThoseWhoCome) {
  const auto policy = new_prefetch_policy(PrefetchKind::conservative);
  EXPECT_EQ(policy->blocks_ahead({20, 100, 1, 0}), 0U) << "nobody went on yet";
  EXPECT_EQ(policy->blocks_ahead({20, 100, 5, 2}), 4U) << "two of four before";
  EXPECT_EQ(policy->blocks_ahead({20, 100, 6, 2}), 0U) << "two of five before";
  EXPECT_EQ(policy->blocks_ahead({20, 4, 5, 4}), 2U) << "half of the free slots";
  EXPECT_EQ(policy->blocks_ahead({1, 100, 5, 4}), 1U);
}

TEST(Prefetch, LearnedLoadsInProportionToTheChance) {
  const auto policy = new_prefetch_policy(PrefetchKind::learned);
  EXPECT_EQ(policy->blocks_ahead({20, 20, 1, 0}), 10U) << "one in two, before anything is known";
  EXPECT_EQ(policy->blocks_ahead({20, 20, 9, 8}), 18U);
  EXPECT_EQ(policy->blocks_ahead({20, 20, 9, 0}), 0U) << "nobody of eight went on";
}

TEST(Prefetch, LearnedGivesUpWhatIsNotUsedAndComesBackWhenItIs) {
  const auto policy = new_prefetch_policy(PrefetchKind::learned);
  const PrefetchChance new_chain = {.stored_blocks = 8, .free_slots = 8, .visits = 1};
  for (int i = 0; i < 100; ++i) policy->report(false);
  std::size_t tried = 0;
  for (int i = 0; i < 64; ++i) tried += policy->blocks_ahead(new_chain);
  EXPECT_EQ(tried, 4U) << "one block in 16 chains, to notice a change";
  for (int i = 0; i < 100; ++i) policy->report(true);
  EXPECT_GE(policy->blocks_ahead(new_chain), 4U);
}

TEST(Prefetch, AnUnknownNameIsNone) { EXPECT_EQ(parse_prefetch("some"), std::nullopt); }

}  // namespace
}  // namespace headrace
