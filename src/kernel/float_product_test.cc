// Products with f32, f16 and bf16 weights: their definition bit for bit, by a panel and in the
// file's layout, and every half.
#include <ggml.h>

#include <algorithm>
#include <cmath>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

struct FloatFormat {
  WeightFormat format;
  ggml_type type;
  std::size_t value_bytes;
};
constexpr FloatFormat float_formats[] = {
    {WeightFormat::f32, GGML_TYPE_F32, 4},
    {WeightFormat::f16, GGML_TYPE_F16, 2},
    {WeightFormat::bf16, GGML_TYPE_BF16, 2},
};

/// Weights of a float format and what ggml says they are.
struct FloatMatrix {
  FloatMatrix(const FloatFormat& facts, std::uint32_t width, std::vector<std::byte> stored)
      : bytes(std::move(stored)), values(bytes.size() / facts.value_bytes) {
    const auto count = static_cast<std::int64_t>(values.size());
    if (facts.type == GGML_TYPE_F32) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      ggml_get_type_traits(facts.type)->to_float(bytes.data(), values.data(), count);
    }
    rows = {facts.format, bytes.data(), width * facts.value_bytes, width};
  }

  std::vector<std::byte> bytes;
  std::vector<float> values;
  WeightRows rows;
};

FloatMatrix random_matrix(const FloatFormat& facts, std::uint32_t width, std::uint32_t outputs,
                          TestRandom& random) {
  const std::vector<float> source = random.normals(std::size_t{width} * outputs);
  std::vector<std::byte> bytes(source.size() * facts.value_bytes);
  if (facts.type == GGML_TYPE_F32) {
    std::memcpy(bytes.data(), source.data(), bytes.size());
  } else {
    ggml_quantize_chunk(facts.type, source.data(), bytes.data(), 0, outputs, width, nullptr);
  }
  return {facts, width, std::move(bytes)};
}

/// c of kernels.h; fused except in the scalar table.
float defined_product(const KernelTable& table, const float* weights, const float* row,
                      std::uint32_t width) {
  float sum = 0;
  for (std::uint32_t k = 0; k < width; ++k) {
    sum = std::string(table.name) == "scalar" ? row[k] * weights[k] + sum
                                              : std::fmaf(row[k], weights[k], sum);
  }
  return sum;
}

class FloatProducts : public KernelTest {
 protected:
  std::vector<float> by_panel(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                              std::span<const float> rows) const {
    const auto count = static_cast<std::uint32_t>(rows.size() / weights.width);
    std::vector<float> out(std::size_t{count} * columns);
    std::vector<float> panel(std::size_t{weights.width} * panel_columns, 1e30F);
    for (std::uint32_t c = 0; c < columns; c += panel_columns) {
      const std::uint32_t part = std::min(panel_columns, columns - c);
      table.unpack_float_panel(weights, first + c, part, panel.data());
      table.float_panel_product(panel.data(), weights.width, part, rows.data(), count,
                                {out.data() + c, columns, false});
    }
    return out;
  }
  std::vector<float> by_few_rows(const WeightRows& weights, std::uint32_t first,
                                 std::uint32_t columns, std::span<const float> rows) const {
    const auto count = static_cast<std::uint32_t>(rows.size() / weights.width);
    std::vector<float> out(std::size_t{count} * columns);
    table.float_few_rows_product(weights, first, columns, rows.data(), count,
                                 {out.data(), columns, false});
    return out;
  }
};
HEADRACE_TEST_EVERY_TABLE(FloatProducts);

TEST_P(FloatProducts, HaveTheBitsOfTheirDefinitionBothWays) {
  TestRandom random(81);
  constexpr std::uint32_t outputs = 100;
  for (const FloatFormat& facts : float_formats) {
    for (const std::uint32_t width : {16U, 80U, 576U}) {
      SCOPED_TRACE(std::string(ggml_type_name(facts.type)) + " " + std::to_string(width));
      const FloatMatrix matrix = random_matrix(facts, width, outputs, random);
      for (const std::uint32_t count : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 13U}) {
        const std::vector<float> rows = random.normals(std::size_t{count} * width);
        std::vector<float> expected;
        for (std::uint32_t row = 0; row < count; ++row) {
          for (std::uint32_t i = 0; i < outputs; ++i) {
            expected.push_back(defined_product(table, &matrix.values[std::size_t{i} * width],
                                               &rows[std::size_t{row} * width], width));
          }
        }
        ASSERT_NO_FATAL_FAILURE(
            expect_same_bits(expected, by_panel(matrix.rows, 0, outputs, rows), "panel"));
        ASSERT_NO_FATAL_FAILURE(
            expect_same_bits(expected, by_few_rows(matrix.rows, 0, outputs, rows), "few rows"));
      }
    }
  }
}

TEST_P(FloatProducts, MayBeginAndEndAtAnyColumn) {
  TestRandom random(82);
  constexpr std::uint32_t width = 32;
  constexpr std::uint32_t outputs = 90;
  for (const FloatFormat& facts : float_formats) {
    SCOPED_TRACE(ggml_type_name(facts.type));
    // Exactly as large as its rows: reading behind the last one would show under a sanitizer.
    const FloatMatrix matrix = random_matrix(facts, width, outputs, random);
    const std::vector<float> row = random.normals(width);
    const std::vector<float> whole = by_few_rows(matrix.rows, 0, outputs, row);
    for (std::uint32_t columns = 1; columns <= panel_columns; ++columns) {
      for (const std::uint32_t first : {0U, 5U, outputs - columns}) {
        const auto expected = std::span(whole).subspan(first, columns);
        ASSERT_NO_FATAL_FAILURE(
            expect_same_bits(expected, by_few_rows(matrix.rows, first, columns, row), "few rows"));
        ASSERT_NO_FATAL_FAILURE(
            expect_same_bits(expected, by_panel(matrix.rows, first, columns, row), "panel"));
      }
    }
  }
}

TEST_P(FloatProducts, OnlyTheNamedColumnsAreWrittenOrAddedTo) {
  TestRandom random(83);
  constexpr std::uint32_t width = 32;
  constexpr std::uint32_t stride = 70;
  const FloatMatrix matrix = random_matrix(float_formats[1], width, stride, random);
  for (const std::uint32_t count : {1U, 3U}) {
    const std::vector<float> rows = random.normals(std::size_t{count} * width);
    for (std::uint32_t columns = 1; columns < stride; ++columns) {
      const std::vector<float> products = by_few_rows(matrix.rows, 0, columns, rows);
      std::vector<float> out(std::size_t{count} * stride, -7.0F);
      table.float_few_rows_product(matrix.rows, 0, columns, rows.data(), count,
                                   {out.data(), stride, true});
      for (std::uint32_t row = 0; row < count; ++row) {
        for (std::uint32_t i = 0; i < stride; ++i) {
          const float expected =
              i < columns ? -7.0F + products[std::size_t{row} * columns + i] : -7.0F;
          ASSERT_EQ(out[std::size_t{row} * stride + i], expected)
              << "row " << row << ", column " << i << " of " << columns;
        }
      }
    }
  }
}

TEST_P(FloatProducts, EveryFiniteHalfMeansWhatGgmlSays) {
  constexpr std::uint32_t width = 16;
  for (const FloatFormat& facts : float_formats) {
    if (facts.value_bytes != 2) continue;
    std::vector<std::byte> bytes;
    const std::uint32_t exponent = facts.format == WeightFormat::f16 ? 0x7C00U : 0x7F80U;
    for (std::uint32_t half = 0; half < 0x10000; ++half) {
      if ((half & exponent) == exponent) continue;
      bytes.push_back(static_cast<std::byte>(half & 0xFFU));
      bytes.push_back(static_cast<std::byte>(half >> 8U));
    }
    const FloatMatrix matrix(facts, width, std::move(bytes));
    const auto outputs = static_cast<std::uint32_t>(matrix.values.size() / width);
    for (std::uint32_t k = 0; k < width; ++k) {
      std::vector<float> row(width);
      row[k] = 1.0F;
      const std::vector<float> out = by_few_rows(matrix.rows, 0, outputs, row);
      for (std::uint32_t i = 0; i < outputs; ++i) {
        ASSERT_EQ(out[i], matrix.values[std::size_t{i} * width + k]) << ggml_type_name(facts.type);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::kernel
