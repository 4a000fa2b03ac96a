// The integer formats mean what ggml says: products with rows that quantise without loss, against
// ggml's own dequantisation in double.
#include <ggml.h>

#include <algorithm>
#include <cmath>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

ggml_type ggml_type_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_0:
      return GGML_TYPE_Q4_0;
    case WeightFormat::q4_1:
      return GGML_TYPE_Q4_1;
    case WeightFormat::q5_0:
      return GGML_TYPE_Q5_0;
    case WeightFormat::q5_1:
      return GGML_TYPE_Q5_1;
    case WeightFormat::q8_0:
      return GGML_TYPE_Q8_0;
    case WeightFormat::iq4_nl:
      return GGML_TYPE_IQ4_NL;
    case WeightFormat::q4_k:
      return GGML_TYPE_Q4_K;
    case WeightFormat::q5_k:
      return GGML_TYPE_Q5_K;
    case WeightFormat::q6_k:
      return GGML_TYPE_Q6_K;
    default:
      return GGML_TYPE_COUNT;
  }
}

std::vector<float> dequantize(const WeightRows& rows, std::uint32_t outputs) {
  std::vector<float> values(std::size_t{rows.width} * outputs);
  const auto to_float = ggml_get_type_traits(ggml_type_of(rows.format))->to_float;
  to_float(rows.data, values.data(), static_cast<std::int64_t>(values.size()));
  return values;
}

/// Compares `row` times the matrix with double arithmetic. What may differ: two roundings per block
/// on our side, one per weight on ggml's, each relative to the largest weight of a block and, for
/// minimums that cancel, to twice that.
void expect_products(const WeightRows& rows, std::span<const float> weights,
                     std::span<const float> row, std::span<const float> out) {
  const std::uint32_t blocks = rows.width / quant_block;
  for (std::size_t output = 0; output < out.size(); ++output) {
    const float* w = weights.data() + output * rows.width;
    double expected = 0;
    double magnitude = 0;
    for (std::uint32_t block = 0; block < blocks; ++block) {
      double sum = 0;
      float largest = 0;
      for (std::uint32_t k = block * quant_block; k < (block + 1) * quant_block; ++k) {
        expected += static_cast<double>(row[k]) * static_cast<double>(w[k]);
        sum += std::fabs(static_cast<double>(row[k]));
        largest = std::max(largest, std::fabs(w[k]));
      }
      magnitude += sum * static_cast<double>(largest);
    }
    const double bound = 0x1p-24 * (4.0 + 2.0 * blocks) * 2.0 * magnitude;
    ASSERT_NEAR(static_cast<double>(out[output]), expected, bound) << "output " << output;
  }
}

class WeightFormats : public KernelTest {
 protected:
  /// One row by both kernels.
  void expect_meaning(const WeightRows& rows, std::uint32_t outputs, std::span<const float> weights,
                      std::span<const float> row) {
    QuantizedBatch batch(table, row, rows.width);
    std::vector<float> out(outputs);
    multiply_row(table, rows, outputs, batch.rows(), false, out);
    ASSERT_NO_FATAL_FAILURE(expect_products(rows, weights, row, out)) << "one-row kernel";
    multiply_rows(table, rows, outputs, batch.rows(), 1, false, out);
    ASSERT_NO_FATAL_FAILURE(expect_products(rows, weights, row, out)) << "many-row kernel";
  }
};
HEADRACE_TEST_EVERY_TABLE(WeightFormats);

/// A power of two times integers up to 127, one of them 127: quantised without loss.
void fill_exact(std::span<float> row, TestRandom& random) {
  for (std::size_t block = 0; block < row.size(); block += quant_block) {
    const float scale = std::ldexp(1.0F, static_cast<int>(random.below(5)) - 2);
    for (std::size_t k = 0; k < quant_block; ++k) {
      row[block + k] = scale * static_cast<float>(static_cast<int>(random.below(255)) - 127);
    }
    row[block + random.below(quant_block)] = 127 * scale;
  }
}

TEST_P(WeightFormats, APackedMatrixMeansWhatGgmlSays) {
  TestRandom random(11);
  constexpr std::uint32_t outputs = 67;
  for (const FormatFacts& facts : integer_formats) {
    const std::uint32_t width = facts.fit(96);
    SCOPED_TRACE(facts.name);
    const std::vector<float> source = random.normals(std::size_t{width} * outputs);
    std::vector<std::byte> packed(facts.bytes(width) * outputs);
    ASSERT_EQ(ggml_quantize_chunk(ggml_type_of(facts.format), source.data(), packed.data(), 0,
                                  outputs, width, nullptr),
              packed.size());
    const WeightRows rows = {facts.format, packed.data(), packed.size() / outputs, width};
    const std::vector<float> weights = dequantize(rows, outputs);
    for (int repeat = 0; repeat < 8; ++repeat) {
      std::vector<float> row(width);
      fill_exact(row, random);
      ASSERT_NO_FATAL_FAILURE(expect_meaning(rows, outputs, weights, row));
    }
  }
}

TEST_P(WeightFormats, EveryWeightOfABlockMeansWhatGgmlSays) {
  TestRandom random(12);
  constexpr std::uint32_t outputs = 50;
  for (const FormatFacts& facts : integer_formats) {
    const std::uint32_t width = facts.fit(64);
    SCOPED_TRACE(facts.name);
    const RandomMatrix matrix(facts, width, outputs, random);
    const std::vector<float> weights = dequantize(matrix.rows, outputs);
    for (std::uint32_t k = 0; k < width; ++k) {
      std::vector<float> row(width);
      row[k] = k % 2 == 0 ? 127.0F : -127.0F;
      ASSERT_NO_FATAL_FAILURE(expect_meaning(matrix.rows, outputs, weights, row)) << "weight " << k;
    }
  }
}

// Pairs of products of bytes exceed 16 bits here: an instruction that saturates would show.
TEST_P(WeightFormats, TheLargestProductsDoNotSaturate) {
  constexpr std::uint32_t outputs = 49;
  for (const FormatFacts& facts : integer_formats) {
    const std::uint32_t width = facts.fit(64);
    for (const int quant : {0x00, 0x0F, 0xF0, 0x7F, 0x80, 0xFF}) {
      SCOPED_TRACE(std::string(facts.name) + " filled with " + std::to_string(quant));
      std::vector<std::byte> bytes(facts.bytes(width) * outputs, static_cast<std::byte>(quant));
      const std::uint16_t one = 0x3C00;
      for (std::size_t block = 0; block < bytes.size(); block += facts.unit_bytes) {
        for (std::uint32_t half = 0; half < facts.halves; ++half) {
          std::memcpy(bytes.data() + block + facts.half_offset(half), &one, 2);
        }
      }
      const WeightRows rows = {facts.format, bytes.data(), bytes.size() / outputs, width};
      const std::vector<float> weights = dequantize(rows, outputs);
      for (const float value : {127.0F, -127.0F}) {
        const std::vector<float> row(width, value);
        ASSERT_NO_FATAL_FAILURE(expect_meaning(rows, outputs, weights, row)) << value;
      }
    }
  }
}

}  // namespace
}  // namespace headrace::kernel
