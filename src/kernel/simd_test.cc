// Arithmetic of the lanes, seen through the kernels: halves and powers of two.
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

class Lanes : public KernelTest {
 protected:
  /// One fold of `count` tokens of 16 dims for a single query.
  std::vector<float> fold(KvType type, void* k, void* v, const float* query,
                          std::uint32_t count) const {
    const std::uint32_t tokens = round_up_to_lanes(count);
    std::vector<float> scratch(fold_scratch_floats(tokens));
    std::vector<float> state(fold_state_floats(lanes));
    std::vector<std::byte> prepared(prepared_query_bytes(lanes));
    table.prepare_query(query, 1.0F, lanes, type, prepared.data());
    const std::byte* queries = prepared.data();
    const std::uint32_t begin = 0;
    const FoldInput input = {
        .page = {static_cast<std::byte*>(k), static_cast<std::byte*>(v), type, tokens, lanes},
        .vectors = 1,
        .queries = &queries,
        .begin = &begin,
        .end = &count};
    table.fold_page(input, scratch.data(), state.data());
    return state;
  }

  /// 2^x for 16 exponents, of which the first must be 0 and the others at most 0: softmax weights
  /// of 16 tokens with these scores, read off by values that are the unit vectors.
  std::array<float, lanes> exp2_of(const std::array<float, lanes>& x) const {
    std::array<float, std::size_t{lanes} * lanes> k{};
    std::array<float, std::size_t{lanes} * lanes> v{};
    std::array<float, lanes> query{};
    query[0] = 1.0F;
    for (std::uint32_t t = 0; t < lanes; ++t) {
      k[t] = x[t];
      v[std::size_t{t} * lanes + t] = 1.0F;
    }
    const std::vector<float> state = fold(KvType::f32, k.data(), v.data(), query.data(), lanes);
    EXPECT_EQ(state[0], 0.0F);
    std::array<float, lanes> powers;
    std::copy_n(state.begin() + lanes, lanes, powers.begin());
    return powers;
  }

 private:
  static std::uint32_t round_up_to_lanes(std::uint32_t count) {
    return (count + lanes - 1) / lanes * lanes;
  }
};
HEADRACE_TEST_EVERY_TABLE(Lanes);

TEST_P(Lanes, PowersOfTwoAreWithin3e7OfTheTruth) {
  constexpr int steps = 126 * 256;
  double worst = 0;
  for (int i = 0; i < steps; i += lanes - 1) {
    std::array<float, lanes> x{};
    for (int j = 1; j < static_cast<int>(lanes); ++j) {
      x[static_cast<std::size_t>(j)] =
          -static_cast<float>(std::min(i + j, steps)) / 256.0F + (j % 2 == 0 ? 0.0F : 0x1p-13F);
    }
    x[1] = std::min(x[1], 0.0F);
    const std::array<float, lanes> powers = exp2_of(x);
    for (std::uint32_t j = 0; j < lanes; ++j) {
      const double expected = std::exp2(static_cast<double>(x[j]));
      const double error = std::fabs(static_cast<double>(powers[j]) / expected - 1.0);
      ASSERT_LT(error, 3e-7) << "2^" << x[j];
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_P(Lanes, WholePowersOfTwoAreExactAndTinyOnesAreZero) {
  for (int i = 0; i <= 126; ++i) {
    std::array<float, lanes> x{};
    x[7] = -static_cast<float>(i);
    ASSERT_EQ(exp2_of(x)[7], std::ldexp(1.0F, -i)) << i;
  }
  for (const float tiny : {-126.001F, -127.0F, -128.5F, -1e4F, -3e38F}) {
    std::array<float, lanes> x{};
    x[9] = tiny;
    ASSERT_EQ(bits_of(exp2_of(x)[9]), 0U) << tiny;
  }
}

/// Values that a conversion to f16 could round wrong: every half, the midpoint to the next one, and
/// both neighbours of that.
std::vector<float> rounding_cases() {
  std::vector<float> values;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const float value = ggml_fp16_to_fp32(static_cast<ggml_fp16_t>(bits));
    const float next =
        bits == 0x7BFF ? 65536.0F : ggml_fp16_to_fp32(static_cast<ggml_fp16_t>(bits + 1));
    const float middle = 0.5F * (value + next);
    for (const float x :
         {value, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, infinity)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  for (const float x : {1e-45F, 1e-30F, 65536.0F, 1e30F, infinity}) {
    values.push_back(x);
    values.push_back(-x);
  }
  while (values.size() % lanes != 0) values.push_back(0.0F);
  return values;
}

TEST_P(Lanes, HalvesAreRoundedAsGgmlRounds) {
  const std::vector<float> values = rounding_cases();
  std::array<std::uint16_t, std::size_t{lanes} * lanes> page_k;
  std::array<std::uint16_t, lanes> page_v;
  for (std::size_t i = 0; i < values.size(); i += lanes) {
    table.store_kv(&values[i], &values[i], lanes, 0, 1,
                   {reinterpret_cast<std::byte*>(page_k.data()),
                    reinterpret_cast<std::byte*>(page_v.data()), KvType::f16, lanes, lanes});
    for (std::size_t d = 0; d < lanes; ++d) {
      ASSERT_EQ(page_v[d], ggml_fp32_to_fp16(values[i + d])) << values[i + d];
      ASSERT_EQ(page_k[d * lanes], ggml_fp32_to_fp16(values[i + d])) << values[i + d];
    }
  }
}

TEST_P(Lanes, EveryFiniteHalfIsReadAsGgmlReadsIt) {
  std::array<std::uint16_t, std::size_t{lanes} * lanes> k{};
  const std::array<float, lanes> query{};
  for (std::uint32_t first = 0; first < 0x10000; first += lanes) {
    if ((first & 0x7C00U) == 0x7C00U) continue;
    std::array<std::uint16_t, lanes> halves;
    for (std::uint32_t i = 0; i < lanes; ++i) halves[i] = static_cast<std::uint16_t>(first + i);
    // A single visible token has the weight 1; the rest of its tile is never multiplied.
    std::array<std::uint16_t, std::size_t{lanes} * lanes> v{};
    std::copy(halves.begin(), halves.end(), v.begin());
    const std::vector<float> state = fold(KvType::f16, k.data(), v.data(), query.data(), 1);
    for (std::uint32_t i = 0; i < lanes; ++i) {
      ASSERT_EQ(state[lanes + i], ggml_fp16_to_fp32(halves[i])) << halves[i];
    }
  }
}

}  // namespace
}  // namespace headrace::kernel
