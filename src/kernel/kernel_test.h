// What tests of kernels share: every table that runs here as a parameter, random weights and rows,
// and comparison by bits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernel/kernels.h"

namespace headrace::kernel {

/// Lets a death test choose the kernels anew: they are chosen once per process. An emulator cannot
/// start the program a second time, so there the child is a fork, which suffices while nothing else
/// runs in the process, as with ctest.
inline void use_new_process() {
#if defined(HEADRACE_EMULATED)
  GTEST_FLAG_SET(death_test_style, "fast");
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
#endif
}

inline std::string table_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return info.param->name;
}

/// A test of one table at a time: `TEST_P`, and HEADRACE_TEST_EVERY_TABLE once per fixture.
class KernelTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table = *GetParam();
};

#define HEADRACE_TEST_EVERY_TABLE(fixture)                                        \
  INSTANTIATE_TEST_SUITE_P(EveryTable, fixture, testing::ValuesIn(tables_here()), \
                           headrace::kernel::table_name)

/// Random numbers of one test; prints the seed.
class TestRandom {
 public:
  explicit TestRandom(unsigned seed) : engine_(seed) { std::printf("seed=%u\n", seed); }

  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
  std::uint32_t below(std::uint32_t end) { return bits() % end; }
  float normal() { return static_cast<float>(normal_(engine_)); }
  std::vector<float> normals(std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal();
    return values;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<double> normal_;
};

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/// Fails at the first value whose bits differ.
inline void expect_same_bits(std::span<const float> expected, std::span<const float> actual,
                             const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(bits_of(expected[i]), bits_of(actual[i]))
        << what << ": value " << i << " is " << actual[i] << " instead of " << expected[i];
  }
}

struct FormatFacts {
  WeightFormat format;
  const char* name;
  std::uint32_t unit_bytes;
  std::uint32_t halves;         ///< f16 values of a unit
  std::uint32_t halves_at = 0;  ///< where they are in it
  std::uint32_t unit_weights = 32;

  /// The least whole number of units that holds `width` weights, in weights.
  std::uint32_t fit(std::uint32_t width) const {
    return (width + unit_weights - 1) / unit_weights * unit_weights;
  }
  std::size_t bytes(std::uint32_t width) const {
    return std::size_t{width} / unit_weights * unit_bytes;
  }
  std::size_t half_offset(std::uint32_t half) const { return halves_at + std::size_t{half} * 2; }
};

inline constexpr FormatFacts integer_formats[] = {
    {WeightFormat::q4_0, "q4_0", 18, 1},
    {WeightFormat::q4_1, "q4_1", 20, 2},
    {WeightFormat::q5_0, "q5_0", 22, 1},
    {WeightFormat::q5_1, "q5_1", 24, 2},
    {WeightFormat::q8_0, "q8_0", 34, 1},
    {WeightFormat::iq4_nl, "iq4_nl", 18, 1},
    {WeightFormat::q4_k, "q4_k", 144, 2, 0, 256},
    {WeightFormat::q5_k, "q5_k", 176, 2, 0, 256},
    {WeightFormat::q6_k, "q6_k", 210, 1, 208, 256},
};

/// A matrix of an integer format whose quants are all bit patterns alike, the extreme ones too.
struct RandomMatrix {
  RandomMatrix(const FormatFacts& facts, std::uint32_t width, std::uint32_t outputs,
               TestRandom& random)
      : bytes(facts.bytes(width) * outputs) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits());
    for (std::size_t block = 0; block < bytes.size(); block += facts.unit_bytes) {
      for (std::uint32_t half = 0; half < facts.halves; ++half) {
        // Exponents 2^-7 to 2^0, either sign.
        const auto value =
            static_cast<std::uint16_t>((random.bits() & 0x83FFU) | (8U + random.below(8)) << 10U);
        std::memcpy(bytes.data() + block + facts.half_offset(half), &value, 2);
      }
    }
    rows = {facts.format, bytes.data(), bytes.size() / outputs, width};
  }

  std::vector<std::byte> bytes;
  WeightRows rows;
};

/// Rows that own their quantised form.
class QuantizedBatch {
 public:
  QuantizedBatch(const KernelTable& table, std::span<const float> rows, std::uint32_t width)
      : values_(rows.size()),
        scales_(rows.size() / quant_block),
        scaled_sums_(rows.size() / quant_block),
        sums_(rows.size() / lanes),
        width_(width) {
    for (std::size_t row = 0; row * width < rows.size(); ++row) {
      table.quantize_row(rows.data() + row * width, this->rows().from_row(row));
    }
  }

  QuantizedRows rows() {
    return {values_.data(), scales_.data(), scaled_sums_.data(), sums_.data(), width_};
  }

 private:
  std::vector<std::int8_t> values_;
  std::vector<float> scales_;
  std::vector<float> scaled_sums_;
  std::vector<std::int32_t> sums_;
  std::uint32_t width_;
};

/// A panel of one matrix, filled with rubbish first: what a kernel does not write must not matter.
class TestPanel {
 public:
  explicit TestPanel(std::uint32_t width)
      : weights_(std::size_t{width} * panel_columns, 0xA5),
        scales_(std::size_t{width} / lanes * panel_columns, 1e30F),
        minimums_(scales_.size(), 1e30F) {}

  IntegerPanel get() { return {weights_.data(), scales_.data(), minimums_.data()}; }

 private:
  std::vector<std::uint8_t> weights_;
  std::vector<float> scales_;
  std::vector<float> minimums_;
};

/// out[row][output] by the many-row kernels; `out` holds what is added to if `accumulate`.
inline void multiply_rows(const KernelTable& table, const WeightRows& weights,
                          std::uint32_t outputs, const QuantizedRows& rows, std::uint32_t row_count,
                          bool accumulate, std::span<float> out) {
  TestPanel panel(weights.width);
  for (std::uint32_t first = 0; first < outputs; first += panel_columns) {
    const std::uint32_t columns = std::min(panel_columns, outputs - first);
    table.unpack_panel(weights, first, columns, panel.get());
    table.integer_panel_product(weights.format, panel.get(), columns, rows, row_count,
                                {out.data() + first, outputs, accumulate});
  }
}

/// out[output] by the one-row kernel.
inline void multiply_row(const KernelTable& table, const WeightRows& weights, std::uint32_t outputs,
                         const QuantizedRows& row, bool accumulate, std::span<float> out) {
  TestPanel scratch(weights.width);
  table.integer_few_rows_product(weights, 0, outputs, row, 1, scratch.get(),
                                 {out.data(), outputs, accumulate});
}

}  // namespace headrace::kernel
