#include "cli/calibration.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace headrace {
namespace {

PrecisionMap geometry(std::size_t heads) {
  return {std::string(32, '0'), 2, std::vector<HeadPrecision>(heads)};
}

TEST(Calibration, WhatLosesMostGetsBitsFirst) {
  const std::vector<HeadLoss> losses = {{1e-4, 3e-5}, {2e-3, 0}};
  const auto refinements = order_refinements(losses);
  ASSERT_EQ(refinements.size(), 8U);
  const PrecisionMap map = refine(geometry(2), refinements, 2);
  EXPECT_EQ(map.heads[0], (HeadPrecision{Precision::q8, Precision::q4}));
  EXPECT_EQ(map.heads[1], (HeadPrecision{Precision::q8, Precision::q4}));
}

TEST(Calibration, AHeadThatLosesFarMoreThanOthersIsRawBeforeTheyHave8Bits) {
  const std::vector<HeadLoss> losses = {{1, 1e-6}, {1e-6, 1e-6}};
  const PrecisionMap map = refine(geometry(2), order_refinements(losses), 2);
  EXPECT_EQ(map.heads[0], (HeadPrecision{Precision::raw, Precision::q4}));
  EXPECT_EQ(map.heads[1], (HeadPrecision{Precision::q4, Precision::q4}));
}

TEST(Calibration, APartHas8BitsBeforeItIsRawAndAllOfThemMakeEverythingRaw) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::vector<HeadLoss> losses(20);
  for (HeadLoss& loss : losses) {
    loss = {static_cast<double>(random() % 1000), static_cast<double>(random() % 3)};
  }
  const auto refinements = order_refinements(losses);
  PrecisionMap before = refine(geometry(20), refinements, 0);
  for (std::size_t count = 1; count <= refinements.size(); ++count) {
    const PrecisionMap map = refine(geometry(20), refinements, count);
    EXPECT_GT(map.mean_bits(), before.mean_bits()) << count;
    before = map;
  }
  for (const HeadPrecision& head : before.heads) {
    EXPECT_EQ(head, (HeadPrecision{Precision::raw, Precision::raw}));
  }
}

TEST(Calibration, ALimitOfBitsIsKeptAndUsed) {
  const std::vector<HeadLoss> losses(8, HeadLoss{1e-4, 1e-5});
  const auto refinements = order_refinements(losses);
  const auto bits_for = [&](double limit) {
    const std::size_t count = refinements_within(limit, geometry(8), refinements);
    return refine(geometry(8), refinements, count).mean_bits();
  };
  for (const double limit : {4.3, 5.0, 6.0, 7.7, 8.5, 12.0, 16.0}) {
    EXPECT_LE(bits_for(limit), limit + 1e-9);
    EXPECT_GT(bits_for(limit), limit - 7.5 / 16) << "another step would not fit";
  }
  EXPECT_NEAR(bits_for(8.5), 8.5, 1e-9) << "q8 everywhere";
  EXPECT_NEAR(bits_for(16), 16, 1e-9);
}

}  // namespace
}  // namespace headrace
