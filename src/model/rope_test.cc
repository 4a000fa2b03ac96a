// Frequencies of rotary positions, against a transcription of the papers in double.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model/architecture.h"
#include "model/test_gguf.h"

namespace headrace {
namespace {

constexpr std::uint32_t dims = 64;
constexpr std::uint32_t trained_context = 512;

Result<RopeSpec> read(const TestGguf& gguf) {
  const OpenedGguf opened(gguf);
  return read_rope(opened.file, "llama.", dims, trained_context, trained_context);
}

TestGguf with_scaling(const char* type, float factor) {
  TestGguf gguf;
  gguf.set_text("llama.rope.scaling.type", type);
  gguf.set_float("llama.rope.scaling.factor", factor);
  return gguf;
}

double plain_frequency(std::uint32_t pair, double base) {
  return std::pow(base, -static_cast<double>(2 * pair) / dims);
}

/// Compares all frequencies with expected(pair).
template <typename Expected>
void expect_frequencies(const RopeSpec& rope, Expected expected) {
  ASSERT_EQ(rope.frequencies.size(), dims / 2);
  for (std::uint32_t pair = 0; pair < dims / 2; ++pair) {
    const double frequency = expected(pair);
    ASSERT_NEAR(rope.frequencies[pair], frequency, 1e-13 * frequency) << "pair " << pair;
  }
}

TEST(Rope, WithoutScalingFrequenciesFallFromOneByTheBase) {
  const RopeSpec rope = read(TestGguf()).value();
  expect_frequencies(rope, [](std::uint32_t pair) { return plain_frequency(pair, 10000.0); });
  EXPECT_EQ(rope.magnitude, 1.0F);
  EXPECT_EQ(rope.frequencies[0], 1.0);
}

TEST(Rope, TheFileNamesTheBase) {
  TestGguf gguf;
  gguf.set_float("llama.rope.freq_base", 500000.0F);
  expect_frequencies(read(gguf).value(),
                     [](std::uint32_t pair) { return plain_frequency(pair, 500000.0); });
}

// Chen et al. 2023: positions are divided.
TEST(Rope, LinearScalingDividesEveryFrequency) {
  const auto quarter = [](std::uint32_t pair) { return plain_frequency(pair, 10000.0) / 4.0; };
  const RopeSpec rope = read(with_scaling("linear", 4.0F)).value();
  expect_frequencies(rope, quarter);
  EXPECT_EQ(rope.magnitude, 1.0F);
  TestGguf old;  // the key of old files
  old.set_float("llama.rope.scale_linear", 4.0F);
  expect_frequencies(read(old).value(), quarter);
}

TEST(Rope, ScalingOfTypeNoneAndAFactorOfZeroScaleNothing) {
  const auto plain = [](std::uint32_t pair) { return plain_frequency(pair, 10000.0); };
  expect_frequencies(read(with_scaling("none", 4.0F)).value(), plain);
  expect_frequencies(read(with_scaling("linear", 0.0F)).value(), plain);
}

/// Peng et al. 2023, "YaRN", section 3.2, with alpha = 1 and beta = 32 rotations: pairs that turn
/// more often than beta within the original context keep their frequency, those that turn less than
/// alpha are interpolated, with a ramp over the pairs in between, whose ends are whole pairs.
double yarn_frequency(std::uint32_t pair, double base, double factor, double context) {
  const auto pair_that_turns = [&](double rotations) {
    return dims * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const double first = std::fmax(std::floor(pair_that_turns(32)), 0);
  const double last = std::fmin(std::ceil(pair_that_turns(1)), dims - 1);
  double ramp = (pair - first) / (last - first);
  if (ramp < 0) ramp = 0;
  if (ramp > 1) ramp = 1;
  const double frequency = plain_frequency(pair, base);
  return (1 - ramp) * frequency + ramp * frequency / factor;
}

TEST(Rope, YarnInterpolatesByFrequency) {
  for (const float factor : {2.0F, 8.0F, 40.0F}) {
    for (const std::uint32_t context : {256U, 4096U, 32768U}) {
      TestGguf gguf = with_scaling("yarn", factor);
      gguf.set_number("llama.rope.scaling.original_context_length", context);
      const RopeSpec rope = read(gguf).value();
      expect_frequencies(rope, [&](std::uint32_t pair) {
        return yarn_frequency(pair, 10000.0, static_cast<double>(factor), context);
      });
      EXPECT_FLOAT_EQ(rope.magnitude, 0.1F * std::log(factor) + 1.0F);
    }
  }
}

TEST(Rope, YarnKeepsFastPairsAndInterpolatesSlowOnes) {
  TestGguf gguf = with_scaling("yarn", 8.0F);
  gguf.set_number("llama.rope.scaling.original_context_length", 4096);
  const RopeSpec rope = read(gguf).value();
  EXPECT_DOUBLE_EQ(rope.frequencies[0], 1.0);
  EXPECT_DOUBLE_EQ(rope.frequencies[1], plain_frequency(1, 10000.0));
  EXPECT_DOUBLE_EQ(rope.frequencies[31], plain_frequency(31, 10000.0) / 8.0);
}

TEST(Rope, YarnWithoutAnOriginalContextTakesTheTrainedOne) {
  expect_frequencies(read(with_scaling("yarn", 8.0F)).value(), [](std::uint32_t pair) {
    return yarn_frequency(pair, 10000.0, 8.0, trained_context);
  });
}

TEST(Rope, TheAttentionFactorMultipliesTheMagnitude) {
  TestGguf yarn = with_scaling("yarn", 8.0F);
  yarn.set_float("llama.rope.scaling.attn_factor", 0.5F);
  EXPECT_FLOAT_EQ(read(yarn).value().magnitude, 0.5F * (0.1F * std::log(8.0F) + 1.0F));
  TestGguf linear = with_scaling("linear", 8.0F);
  linear.set_float("llama.rope.scaling.attn_factor", 0.5F);
  EXPECT_EQ(read(linear).value().magnitude, 0.5F);
}

TEST(Rope, ATensorOfFactorsDividesPairByPair) {
  TestGguf gguf;
  std::vector<float> factors(dims / 2);
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0F + static_cast<float>(i) / 4.0F;
  gguf.set_tensor("rope_freqs.weight", dims / 2, 1, factors);
  expect_frequencies(read(gguf).value(), [&](std::uint32_t pair) {
    return plain_frequency(pair, 10000.0) / static_cast<double>(factors[pair]);
  });
}

TEST(Rope, BadScalingsAreRefused) {
  const auto code = [](const TestGguf& gguf) {
    const Result<RopeSpec> rope = read(gguf);
    EXPECT_FALSE(rope.ok());
    return rope.ok() ? ErrorCode::internal : rope.error().code;
  };
  EXPECT_EQ(code(with_scaling("dynamic", 4.0F)), ErrorCode::unsupported);
  EXPECT_TRUE(contains(read(with_scaling("dynamic", 4.0F)).error().message, "'dynamic'"));
  EXPECT_EQ(code(with_scaling("longrope", 4.0F)), ErrorCode::corrupt) << "without its factors";
  EXPECT_EQ(code(with_scaling("linear", -1.0F)), ErrorCode::corrupt);
  EXPECT_EQ(code(with_scaling("yarn", std::nanf(""))), ErrorCode::corrupt);
  TestGguf base;
  base.set_float("llama.rope.freq_base", 1.0F);
  EXPECT_EQ(code(base), ErrorCode::corrupt);
  TestGguf context = with_scaling("yarn", 8.0F);
  context.set_number("llama.rope.scaling.original_context_length", 0);
  EXPECT_EQ(code(context), ErrorCode::corrupt);
  TestGguf factors;
  factors.set_tensor("rope_freqs.weight", 16, 1, std::vector<float>(16, 1.0F));
  EXPECT_EQ(code(factors), ErrorCode::corrupt);
  EXPECT_TRUE(contains(read(factors).error().message, "'rope_freqs.weight' is 16 x 1"));
}

}  // namespace
}  // namespace headrace
