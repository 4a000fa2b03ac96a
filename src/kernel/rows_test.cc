// Kernels over one row, against their formulas in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

class RowKernels : public KernelTest {
 protected:
  struct Quantized {
    std::vector<std::int8_t> values;
    std::vector<float> scales;
    std::vector<float> scaled_sums;
    std::vector<std::int32_t> sums;
  };
  Quantized quantize(std::span<const float> row) const {
    const std::size_t blocks = row.size() / quant_block;
    Quantized out = {std::vector<std::int8_t>(row.size(), 99), std::vector<float>(blocks, 99),
                     std::vector<float>(blocks, 99), std::vector<std::int32_t>(blocks * 2, 99)};
    table.quantize_row(row.data(), {out.values.data(), out.scales.data(), out.scaled_sums.data(),
                                    out.sums.data(), static_cast<std::uint32_t>(row.size())});
    return out;
  }

  using Gated = void (*)(const float*, const float*, std::uint32_t, float*);
  static float gated(Gated function, float gate, float up) {
    const std::vector<float> gates(lanes, gate);
    const std::vector<float> ups(lanes, up);
    std::vector<float> out(lanes);
    function(gates.data(), ups.data(), lanes, out.data());
    for (const float value : out) EXPECT_EQ(bits_of(value), bits_of(out[0]));
    return out[0];
  }
  float swiglu(float gate, float up) const { return gated(table.swiglu, gate, up); }
  float geglu(float gate, float up) const { return gated(table.geglu, gate, up); }
};
HEADRACE_TEST_EVERY_TABLE(RowKernels);

TEST_P(RowKernels, RmsNormDividesByTheRootOfTheMeanSquare) {
  TestRandom random(31);
  for (const std::uint32_t width : {16U, 48U, 64U, 576U, 1536U}) {
    const std::vector<float> x = random.normals(width);
    const std::vector<float> weight = random.normals(width);
    std::vector<float> out(width);
    table.rms_norm(x.data(), weight.data(), 1e-5F, width, out.data());
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    const double scale = 1.0 / std::sqrt(squares / width + static_cast<double>(1e-5F));
    // A sum of positive numbers in lanes of width / 16 additions, then four roundings.
    const double relative = 0x1p-24 * (width / 16.0 + 12.0);
    for (std::uint32_t i = 0; i < width; ++i) {
      const double expected = static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]);
      ASSERT_NEAR(static_cast<double>(out[i]), expected, relative * std::fabs(expected))
          << "width " << width << ", value " << i;
    }
  }
}

TEST_P(RowKernels, RmsNormOfZerosIsZero) {
  const std::vector<float> zeros(64);
  const std::vector<float> weight(64, 2.0F);
  std::vector<float> out(64, 99.0F);
  table.rms_norm(zeros.data(), weight.data(), 1e-5F, 64, out.data());
  EXPECT_EQ(out, zeros);
}

TEST_P(RowKernels, SwigluIsTheGatesSiluTimesUp) {
  for (int i = -4000; i <= 4000; ++i) {
    const float gate = static_cast<float>(i) / 50.0F;
    const auto g = static_cast<double>(gate);
    const double expected = g / (1.0 + std::exp(-g)) * 0.75;
    // The exponent is rounded once, which e^x magnifies by |x|.
    const double relative = 0x1p-23 * (std::fabs(g) * 1.5 + 6.0);
    ASSERT_NEAR(static_cast<double>(swiglu(gate, 0.75F)), expected, relative * std::fabs(expected))
        << "gate " << gate;
  }
}

TEST_P(RowKernels, SwigluOfExtremeGatesIsANumber) {
  constexpr float largest = std::numeric_limits<float>::max();
  for (const float gate : {0.0F, 1e-45F, 1e-20F, 80.0F, 87.3F, 88.0F, 90.0F, 1e10F, largest}) {
    EXPECT_TRUE(std::isfinite(swiglu(gate, 1.0F))) << gate;
    EXPECT_TRUE(std::isfinite(swiglu(-gate, 1.0F))) << -gate;
  }
  for (const float gate : {90.0F, 1e10F, largest}) {
    EXPECT_EQ(swiglu(gate, 1.0F), gate);
    // e^-g is capped at 2^126, so a gate far below zero is not quite shut.
    EXPECT_LE(std::fabs(swiglu(-gate, 1.0F)), gate * 0x1p-126F) << -gate;
  }
  EXPECT_TRUE(std::isnan(swiglu(std::numeric_limits<float>::quiet_NaN(), 1.0F)))
      << "a broken number must not turn into one that looks sound";
}

TEST_P(RowKernels, GegluIsTheGatesGeluTimesUp) {
  for (int i = -4000; i <= 4000; ++i) {
    const float gate = static_cast<float>(i) / 400.0F;
    const auto g = static_cast<double>(gate);
    // In its tanh form, written without the cancellation that 1 + tanh has below zero.
    const double twice = 2.0 * std::sqrt(2.0 / std::numbers::pi) * (g + 0.044715 * g * g * g);
    const double expected = g / (1.0 + std::exp(-twice)) * 0.75;
    // The exponent is rounded three times, which e^x magnifies by |x|.
    const double relative = 0x1p-23 * (std::fabs(twice) * 3.0 + 6.0);
    ASSERT_NEAR(static_cast<double>(geglu(gate, 0.75F)), expected, relative * std::fabs(expected))
        << "gate " << gate;
  }
}

TEST_P(RowKernels, GegluOfExtremeGatesIsANumber) {
  constexpr float largest = std::numeric_limits<float>::max();
  for (const float gate : {0.0F, 1e-45F, 1e-20F, 12.0F, 80.0F, 1e10F, 1e20F, largest}) {
    EXPECT_TRUE(std::isfinite(geglu(gate, 1.0F))) << gate;
    EXPECT_TRUE(std::isfinite(geglu(-gate, 1.0F))) << -gate;
  }
  for (const float gate : {12.0F, 1e10F, 1e20F, largest}) {
    EXPECT_EQ(geglu(gate, 1.0F), gate);
    EXPECT_LE(std::fabs(geglu(-gate, 1.0F)), gate * 0x1p-126F) << -gate;
  }
  EXPECT_TRUE(std::isnan(geglu(std::numeric_limits<float>::quiet_NaN(), 1.0F)));
}

TEST_P(RowKernels, AddAddsEachValueOnce) {
  TestRandom random(32);
  const std::vector<float> x = random.normals(112);
  const std::vector<float> y = random.normals(112);
  std::vector<float> out = x;
  table.add(out.data(), y.data(), 112);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], x[i] + y[i]) << i;
}

TEST_P(RowKernels, AQuantisedRowIsWithinHalfAStep) {
  TestRandom random(33);
  for (const float loudness : {1e-30F, 1e-3F, 1.0F, 1e4F, 1e30F}) {
    std::vector<float> row = random.normals(1536);
    for (float& value : row) value *= loudness;
    const Quantized out = quantize(row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double scale = static_cast<double>(out.scales[i / quant_block]);
      // Half a step, and the roundings of the scale and of its inverse at up to 127 steps.
      ASSERT_NEAR(scale * out.values[i], static_cast<double>(row[i]), scale * (0.5 + 127 * 0x1p-22))
          << "value " << i << " of loudness " << loudness;
    }
  }
}

TEST_P(RowKernels, TheLargestValueOfABlockBecomes127WhereverItStands) {
  for (std::size_t place = 0; place < 2 * quant_block; ++place) {
    std::vector<float> row(std::size_t{2} * quant_block, 0.125F);
    row[place] = place % 2 == 0 ? 3.3F : -3.3F;
    const Quantized out = quantize(row);
    ASSERT_EQ(out.values[place], place % 2 == 0 ? 127 : -127) << place;
    ASSERT_EQ(out.scales[place / quant_block], 3.3F / 127.0F) << place;
    ASSERT_EQ(out.values[place ^ quant_block], 127) << "the other block has a scale of its own";
  }
}

TEST_P(RowKernels, SumsAreThoseOfTheQuantisedValues) {
  TestRandom random(34);
  const Quantized out = quantize(random.normals(320));
  for (std::size_t block = 0; block < out.scales.size(); ++block) {
    const auto begin = out.values.begin() + static_cast<std::ptrdiff_t>(block * quant_block);
    const std::int32_t first = std::accumulate(begin, begin + lanes, 0);
    const std::int32_t second = std::accumulate(begin + lanes, begin + quant_block, 0);
    ASSERT_EQ(out.sums[block * 2], first);
    ASSERT_EQ(out.sums[block * 2 + 1], second);
    ASSERT_EQ(out.scaled_sums[block], out.scales[block] * static_cast<float>(first + second));
  }
}

TEST_P(RowKernels, RowsOfZerosAndOfTinyValuesQuantiseToZeros) {
  for (const float tiny : {0.0F, -0.0F, 1e-45F, -1e-40F, 1e-38F, 3e-37F}) {
    std::vector<float> row(64);
    row[5] = tiny;
    row[63] = tiny;
    const Quantized out = quantize(row);
    EXPECT_EQ(out.values, std::vector<std::int8_t>(64)) << tiny;
    EXPECT_EQ(out.sums, std::vector<std::int32_t>(4)) << tiny;
    EXPECT_EQ(out.scaled_sums, std::vector<float>(2)) << tiny;
  }
}

TEST_P(RowKernels, RopeAtPositionZeroChangesNothing) {
  TestRandom random(35);
  const std::vector<float> before = random.normals(64);
  std::vector<float> head = before;
  const std::vector<float> cosine(32, 1.0F);
  const std::vector<float> sine(32, 0.0F);
  table.rope_pairs(head.data(), cosine.data(), sine.data(), 32);
  expect_same_bits(before, head, "head");
}

TEST_P(RowKernels, RopeTurnsNeighbouringPairsAndKeepsTheirLength) {
  TestRandom random(36);
  constexpr std::uint32_t pairs = 40;
  const std::vector<float> before = random.normals(std::size_t{2} * pairs);
  std::vector<float> head = before;
  std::vector<float> cosine(pairs);
  std::vector<float> sine(pairs);
  for (std::uint32_t i = 0; i < pairs; ++i) {
    cosine[i] = static_cast<float>(std::cos(0.37 * i));
    sine[i] = static_cast<float>(std::sin(0.37 * i));
  }
  table.rope_pairs(head.data(), cosine.data(), sine.data(), pairs);
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const double x = static_cast<double>(before[2 * i]);
    const double y = static_cast<double>(before[2 * i + 1]);
    const double length = std::hypot(x, y);
    const double angle = std::atan2(y, x) + 0.37 * i;
    ASSERT_NEAR(static_cast<double>(head[2 * i]), length * std::cos(angle), 3e-7 * length) << i;
    ASSERT_NEAR(static_cast<double>(head[2 * i + 1]), length * std::sin(angle), 3e-7 * length) << i;
    ASSERT_NEAR(std::hypot(static_cast<double>(head[2 * i]), static_cast<double>(head[2 * i + 1])),
                length, 3e-7 * length)
        << i;
  }
}

TEST_P(RowKernels, RopeOfHalvesDoesToHalvesWhatRopeOfPairsDoesToNeighbours) {
  TestRandom random(37);
  for (const std::uint32_t pairs : {4U, 8U, 16U, 24U, 40U, 64U}) {
    const std::vector<float> before = random.normals(std::size_t{2} * pairs + 16);
    const std::vector<float> cosine = random.normals(pairs);
    const std::vector<float> sine = random.normals(pairs);
    std::vector<float> halves = before;
    table.rope_halves(halves.data(), cosine.data(), sine.data(), pairs);
    std::vector<float> neighbours = before;
    for (std::uint32_t i = 0; i < pairs; ++i) {
      neighbours[2 * i] = before[i];
      neighbours[2 * i + 1] = before[pairs + i];
    }
    table.rope_pairs(neighbours.data(), cosine.data(), sine.data(), pairs);
    std::vector<float> expected = before;  // what lies behind is not touched
    for (std::uint32_t i = 0; i < pairs; ++i) {
      expected[i] = neighbours[2 * i];
      expected[pairs + i] = neighbours[2 * i + 1];
    }
    expect_same_bits(expected, halves, "head of " + std::to_string(pairs) + " pairs");
  }
}

}  // namespace
}  // namespace headrace::kernel
