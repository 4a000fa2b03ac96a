// Row invariance of the integer kernels (invariant 2): a row alone and among others, and the
// definition that both share, bit for bit.
#include <ggml.h>

#include <algorithm>
#include <cmath>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

constexpr std::uint32_t rows_max = 17;
constexpr std::uint32_t widths[] = {32, 64, 96, 576, 1536};
constexpr std::uint32_t output_counts[] = {1, 15, 16, 47, 48, 49, 96, 200};

class RowInvariance : public KernelTest {
 protected:
  void expect_row_invariance(const FormatFacts& facts, std::uint32_t width, std::uint32_t outputs,
                             bool accumulate, TestRandom& random) {
    const RandomMatrix matrix(facts, width, outputs, random);
    QuantizedBatch batch(table, random.normals(std::size_t{rows_max} * width), width);
    const std::vector<float> before = random.normals(std::size_t{rows_max} * outputs);
    std::vector<float> alone = before;
    for (std::uint32_t row = 0; row < rows_max; ++row) {
      multiply_row(table, matrix.rows, outputs, batch.rows().from_row(row), accumulate,
                   std::span(alone).subspan(std::size_t{row} * outputs, outputs));
    }
    // Wide matrices take long: counts on both sides of every tile suffice.
    const std::uint32_t step = width * outputs > 100'000 ? 4 : 1;
    for (std::uint32_t count = 1; count <= rows_max; count += step) {
      const std::uint32_t first = random.below(rows_max - count + 1);
      const std::size_t from = std::size_t{first} * outputs;
      std::vector<float> together(
          before.begin() + static_cast<std::ptrdiff_t>(from),
          before.begin() + static_cast<std::ptrdiff_t>(from + std::size_t{count} * outputs));
      multiply_rows(table, matrix.rows, outputs, batch.rows().from_row(first), count, accumulate,
                    together);
      ASSERT_NO_FATAL_FAILURE(
          expect_same_bits(std::span(alone).subspan(from, together.size()), together,
                           std::to_string(count) + " rows from " + std::to_string(first)));
    }
  }
};
HEADRACE_TEST_EVERY_TABLE(RowInvariance);

TEST_P(RowInvariance, ARowGivesTheSameBitsAloneAndAmongOthers) {
  TestRandom random(21);
  for (const FormatFacts& facts : integer_formats) {
    for (const std::uint32_t least : widths) {
      const std::uint32_t width = facts.fit(least);
      for (const std::uint32_t outputs : output_counts) {
        SCOPED_TRACE(std::string(facts.name) + " " + std::to_string(width) + " x " +
                     std::to_string(outputs));
        ASSERT_NO_FATAL_FAILURE(
            expect_row_invariance(facts, width, outputs, outputs % 2 == 0, random));
      }
    }
  }
}

/// c of kernels.h for one output: a dot product of integers per block, then one or two additions,
/// which are fused except in the scalar table.
float defined_product(const KernelTable& table, const FormatFacts& facts, const std::byte* weights,
                      const QuantizedRows& row) {
  const auto add = [&](float a, float b, float c) {
    return std::string(table.name) == "scalar" ? a * b + c : std::fmaf(a, b, c);
  };
  float sum = 0;
  for (std::uint32_t b = 0; b < row.width / quant_block; ++b) {
    const std::byte* block = weights + std::size_t{b} * facts.unit_bytes;
    std::uint16_t halves[2];
    std::memcpy(halves, block, sizeof(halves));
    std::int32_t dot = 0;
    for (std::uint32_t k = 0; k < quant_block; ++k) {
      const std::int32_t a = row.values[b * quant_block + k];
      if (facts.format == WeightFormat::q8_0) {
        dot += a * static_cast<std::int8_t>(block[2 + k]);
      } else {  // q4_1: low nibbles, then high ones
        const auto pair = std::to_integer<std::int32_t>(block[4 + k % 16]);
        dot += a * (k < 16 ? pair & 15 : pair >> 4);
      }
    }
    sum = add(static_cast<float>(dot), ggml_fp16_to_fp32(halves[0]) * row.scales[b], sum);
    if (facts.halves == 2) sum = add(ggml_fp16_to_fp32(halves[1]), row.scaled_sums[b], sum);
  }
  return sum;
}

TEST_P(RowInvariance, AnIntegerProductHasTheBitsOfItsDefinition) {
  TestRandom random(25);
  constexpr std::uint32_t width = 576;
  constexpr std::uint32_t outputs = 19;
  for (const FormatFacts& facts : integer_formats) {
    if (facts.format != WeightFormat::q8_0 && facts.format != WeightFormat::q4_1) continue;
    const RandomMatrix matrix(facts, width, outputs, random);
    QuantizedBatch batch(table, random.normals(width), width);
    std::vector<float> expected;
    for (std::uint32_t i = 0; i < outputs; ++i) {
      const std::byte* weights = matrix.rows.data + i * matrix.rows.row_bytes;
      expected.push_back(defined_product(table, facts, weights, batch.rows()));
    }
    std::vector<float> out(outputs);
    multiply_row(table, matrix.rows, outputs, batch.rows(), false, out);
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(expected, out, facts.name));
  }
}

TEST_P(RowInvariance, HoldsWhetherAProductIsStoredOrAdded) {
  TestRandom random(22);
  for (const FormatFacts& facts : integer_formats) {
    for (const std::uint32_t outputs : output_counts) {
      SCOPED_TRACE(std::string(facts.name) + ", outputs: " + std::to_string(outputs));
      const std::uint32_t width = facts.fit(64);
      ASSERT_NO_FATAL_FAILURE(expect_row_invariance(facts, width, outputs, false, random));
      ASSERT_NO_FATAL_FAILURE(expect_row_invariance(facts, width, outputs, true, random));
    }
  }
}

TEST_P(RowInvariance, APanelMayBeginAtAnyColumn) {
  TestRandom random(23);
  constexpr std::uint32_t outputs = 120;
  for (const FormatFacts& facts : integer_formats) {
    const std::uint32_t width = facts.fit(64);
    SCOPED_TRACE(facts.name);
    const RandomMatrix matrix(facts, width, outputs, random);
    QuantizedBatch batch(table, random.normals(width), width);
    std::vector<float> whole(outputs);
    multiply_row(table, matrix.rows, outputs, batch.rows(), false, whole);
    for (const std::uint32_t first : {1U, 5U, 16U, 71U, 72U}) {
      for (const std::uint32_t columns : {1U, 16U, 17U, 47U, 48U}) {
        TestPanel panel(width);
        std::vector<float> part(columns);
        table.unpack_panel(matrix.rows, first, columns, panel.get());
        table.integer_panel_product(facts.format, panel.get(), columns, batch.rows(), 1,
                                    {part.data(), columns, false});
        const auto expected = std::span(whole).subspan(first, columns);
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(expected, part, "panel"));
        table.integer_few_rows_product(matrix.rows, first, columns, batch.rows(), 1, panel.get(),
                                       {part.data(), columns, false});
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(expected, part, "row"));
      }
    }
  }
}

TEST_P(RowInvariance, OnlyTheNamedColumnsAreWritten) {
  TestRandom random(24);
  constexpr std::uint32_t stride = 64;
  for (const FormatFacts& facts : integer_formats) {
    const std::uint32_t width = facts.fit(32);
    const RandomMatrix matrix(facts, width, panel_columns, random);
    QuantizedBatch batch(table, random.normals(std::size_t{3} * width), width);
    for (std::uint32_t columns = 1; columns <= panel_columns; ++columns) {
      TestPanel panel(width);
      std::vector<float> out(std::size_t{3} * stride, -7.0F);
      table.unpack_panel(matrix.rows, 0, columns, panel.get());
      table.integer_panel_product(facts.format, panel.get(), columns, batch.rows(), 3,
                                  {out.data(), stride, false});
      std::vector<float> one(stride, -7.0F);
      table.integer_few_rows_product(matrix.rows, 0, columns, batch.rows(), 1, panel.get(),
                                     {one.data(), columns, false});
      for (std::uint32_t i = columns; i < stride; ++i) {
        ASSERT_EQ(one[i], -7.0F) << facts.name << ", column " << i << " of " << columns;
        for (std::uint32_t row = 0; row < 3; ++row) {
          ASSERT_EQ(out[std::size_t{row} * stride + i], -7.0F)
              << facts.name << ", column " << i << " of " << columns;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace::kernel
