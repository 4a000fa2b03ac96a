#include "model/hidden_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace headrace {
namespace {

constexpr std::uint32_t width = 96;

std::vector<float> random_row(unsigned seed) {
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(width);
  for (float& value : row) value = normal(random);
  return row;
}

/// Memory for a quantised row.
struct QuantizedRow {
  std::vector<std::int8_t> values = std::vector<std::int8_t>(width);
  std::vector<float> scales = std::vector<float>(width / 32);
  std::vector<float> scaled_sums = std::vector<float>(width / 32);
  std::vector<std::int32_t> sums = std::vector<std::int32_t>(width / 16);
  kernel::QuantizedRows row() {
    return {values.data(), scales.data(), scaled_sums.data(), sums.data(), width};
  }
  bool operator==(const QuantizedRow&) const = default;
};

std::vector<std::byte> kept(HiddenType type, const std::vector<float>& row) {
  std::vector<std::byte> bytes(hidden_row_bytes(type, width));
  QuantizedRow scratch;
  keep_row(type, row.data(), width, scratch.row(), bytes.data());
  return bytes;
}

std::vector<float> read(HiddenType type, const std::vector<std::byte>& bytes) {
  std::vector<float> row(width);
  read_row(type, bytes.data(), width, row.data());
  return row;
}

TEST(HiddenRows, TakeWhatTheirTypeSays) {
  EXPECT_EQ(hidden_row_bytes(HiddenType::f32, width), 384U);
  EXPECT_EQ(hidden_row_bytes(HiddenType::f16, width), 192U);
  EXPECT_EQ(hidden_row_bytes(HiddenType::q8, width), 96U + 12);
  EXPECT_FALSE(can_keep_rows(HiddenType::q8, 48)) << "scales are those of 32 values";
  EXPECT_TRUE(can_keep_rows(HiddenType::f16, 48));
}

TEST(HiddenRows, OfF32ComeBackAsTheyWere) {
  const std::vector<float> row = random_row(11);
  EXPECT_EQ(read(HiddenType::f32, kept(HiddenType::f32, row)), row);
}

TEST(HiddenRows, WhatIsReadIsKeptAsItIs) {
  for (const HiddenType type : {HiddenType::f16, HiddenType::q8}) {
    const std::vector<float> row = read(type, kept(type, random_row(12)));
    const std::vector<float> again = read(type, kept(type, row));
    for (std::uint32_t i = 0; i < width; ++i) EXPECT_NEAR(row[i], again[i], 1e-6F);
  }
}

TEST(HiddenRows, OfF16StayFinite) {
  std::vector<float> row = random_row(13);
  row[3] = 1e6F;
  row[4] = -1e6F;
  const std::vector<float> back = read(HiddenType::f16, kept(HiddenType::f16, row));
  EXPECT_EQ(back[3], 65'504.0F);
  EXPECT_EQ(back[4], -65'504.0F);
  EXPECT_NEAR(back[5], row[5], 1e-2F);
}

TEST(HiddenRows, OfQ8AreWhatKernelsOfIntegerWeightsRead) {
  const std::vector<float> row = random_row(14);
  QuantizedRow quantized;
  kernel::kernels().quantize_row(row.data(), quantized.row());
  QuantizedRow back;
  read_quantized_row(kept(HiddenType::q8, row).data(), back.row());
  EXPECT_EQ(back, quantized);
}

}  // namespace
}  // namespace headrace
