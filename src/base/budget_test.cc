#include "base/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TEST(Budget, GivesBackWhenTheReservationEnds) {
  Budget budget(100);
  {
    const Reservation held = budget.reserve(60, "page").value();
    EXPECT_EQ(held.bytes(), 60U);
    EXPECT_EQ(budget.used_bytes(), 60U);
    EXPECT_EQ(budget.free_bytes(), 40U);
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
  EXPECT_EQ(budget.peak_bytes(), 60U);
}

TEST(Budget, GrantsTheLastByteAndNotOneMore) {
  Budget budget(100);
  const Reservation all = budget.reserve(100, "all").value();
  EXPECT_TRUE(budget.reserve(0, "nothing").ok());
  EXPECT_EQ(budget.reserve(1, "more").error().code, ErrorCode::out_of_budget);
  EXPECT_EQ(budget.peak_bytes(), 100U);
}

TEST(Budget, SaysInUnitsForPeopleWhatDidNotFit) {
  Budget budget(std::uint64_t{64} << 20);
  const Reservation held = budget.reserve(std::uint64_t{52} << 20, "weights").value();
  EXPECT_EQ(budget.reserve(24'746'394, "KV pool").error().message,
            "KV pool: 23.6 MiB asked, 12 MiB left of 64 MiB");
}

TEST(Budget, SurvivesARequestNearTheEndOfTheNumbers) {
  Budget budget(100);
  const Reservation held = budget.reserve(50, "page").value();
  EXPECT_FALSE(budget.reserve(UINT64_MAX, "mistake").ok());
  EXPECT_EQ(budget.used_bytes(), 50U);
}

TEST(Reservation, MovesWithoutGivingBack) {
  Budget budget(100);
  Reservation first = budget.reserve(10, "a").value();
  Reservation second = std::move(first);
  EXPECT_EQ(budget.used_bytes(), 10U);
  second = budget.reserve(20, "b").value();
  EXPECT_EQ(budget.used_bytes(), 20U);
  second = Reservation();
  EXPECT_EQ(budget.used_bytes(), 0U);
  EXPECT_EQ(budget.peak_bytes(), 30U);
}

TEST(Budget, AgreesWithAPlainSumUnderRandomUse) {
  const unsigned seed = std::random_device()();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  Budget budget(1000);
  std::vector<Reservation> held;
  std::uint64_t sum = 0;
  std::uint64_t peak = 0;
  for (int i = 0; i < 2000; ++i) {
    if (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      sum -= held.back().bytes();
      held.pop_back();
      continue;
    }
    const std::uint64_t bytes = random() % 300;
    Result<Reservation> result = budget.reserve(bytes, "part");
    ASSERT_EQ(result.ok(), sum + bytes <= 1000);
    if (!result.ok()) continue;
    sum += bytes;
    peak = std::max(peak, sum);
    held.push_back(std::move(result).value());
    ASSERT_EQ(budget.used_bytes(), sum);
    ASSERT_EQ(budget.peak_bytes(), peak);
  }
}

}  // namespace
}  // namespace headrace
