// How far the instruction sets agree. avx2 and avx512 compute the same operations in the same order
// with fused multiply-adds, so all of their kernels give the same bits. scalar rounds a product
// before adding it: integer dots, halves, quantisation and rotation are the same bits still, and
// everything else is within 2^-18 of the largest output.
#include <algorithm>
#include <cmath>

#include "kernel/kernel_test.h"

namespace headrace::kernel {
namespace {

/// How alike instruction sets are. rounded_weights: softmax weights go through bf16, where a
/// difference in their last bit becomes one of 2^-8.
enum class Agreement { bits_everywhere, bits_unless_scalar, rounded_weights };

/// Calls `kernel(table)` for every table and compares the floats that it returns.
template <typename Kernel>
void expect_agreement(Agreement agreement, const std::string& what, Kernel kernel) {
  const std::vector<const KernelTable*> tables = tables_here();
  const std::vector<float> expected = kernel(*tables.front());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  for (const KernelTable* table : tables) {
    const std::vector<float> actual = kernel(*table);
    const std::string pair = what + ", " + table->name + " against " + tables.front()->name;
    const bool same_bits =
        agreement == Agreement::bits_everywhere ||
        (agreement == Agreement::bits_unless_scalar && std::string(table->name) != "scalar");
    if (same_bits) {
      expect_same_bits(expected, actual, pair);
      continue;
    }
    ASSERT_EQ(expected.size(), actual.size()) << pair;
    const float bound = agreement == Agreement::rounded_weights ? 0x1p-8F : 0x1p-18F;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(expected[i], actual[i], bound * largest) << pair << ", value " << i;
    }
  }
}

class InstructionSets : public testing::Test {
 protected:
  void SetUp() override {
    if (tables_here().size() < 2) GTEST_SKIP() << "this machine runs one instruction set only";
  }
};

TEST_F(InstructionSets, AgreeOnIntegerProducts) {
  TestRandom random(51);
  constexpr std::uint32_t width = 1536;
  constexpr std::uint32_t outputs = 75;
  constexpr std::uint32_t count = 5;
  for (const FormatFacts& facts : integer_formats) {
    const RandomMatrix matrix(facts, width, outputs, random);
    const std::vector<float> rows = random.normals(std::size_t{count} * width);
    expect_agreement(Agreement::bits_unless_scalar, facts.name, [&](const KernelTable& table) {
      QuantizedBatch batch(table, rows, width);
      std::vector<float> out(std::size_t{count} * outputs);
      multiply_rows(table, matrix.rows, outputs, batch.rows(), count, false, out);
      return out;
    });
  }
}

TEST_F(InstructionSets, AgreeOnTheBitsOfAProductThatNeedsNoRounding) {
  TestRandom random(52);
  // One block, scales of 1: the product is an integer below 2^24. The k formats have more blocks in
  // their least row, with scales of their own, whose sums need rounding.
  constexpr std::uint32_t outputs = 50;
  for (const FormatFacts& facts : integer_formats) {
    if (facts.unit_weights != quant_block) continue;
    RandomMatrix matrix(facts, quant_block, outputs, random);
    const std::uint16_t one = 0x3C00;
    for (std::size_t block = 0; block < matrix.bytes.size(); block += facts.unit_bytes) {
      for (std::uint32_t half = 0; half < facts.halves; ++half) {
        std::memcpy(matrix.bytes.data() + block + facts.half_offset(half), &one, 2);
      }
    }
    std::vector<float> row(quant_block, 127.0F);
    for (std::size_t i = 1; i < row.size(); ++i) {
      row[i] = static_cast<float>(static_cast<int>(random.below(255)) - 127);
    }
    expect_agreement(Agreement::bits_everywhere, facts.name, [&](const KernelTable& table) {
      QuantizedBatch batch(table, row, quant_block);
      std::vector<float> out(outputs);
      multiply_row(table, matrix.rows, outputs, batch.rows(), false, out);
      return out;
    });
  }
}

TEST_F(InstructionSets, AgreeOnFloatProducts) {
  TestRandom random(53);
  constexpr std::uint32_t width = 576;
  const std::vector<float> panel = random.normals(std::size_t{width} * panel_columns);
  const std::vector<float> rows = random.normals(std::size_t{7} * width);
  expect_agreement(Agreement::bits_unless_scalar, "f32 panel", [&](const KernelTable& table) {
    std::vector<float> out(std::size_t{7} * panel_columns);
    table.float_panel_product(panel.data(), width, panel_columns, rows.data(), 7,
                              {out.data(), panel_columns, false});
    return out;
  });
}

TEST_F(InstructionSets, AgreeOnQuantisedRows) {
  TestRandom random(54);
  const std::vector<float> rows = random.normals(4096);
  expect_agreement(Agreement::bits_everywhere, "quantize_row", [&](const KernelTable& table) {
    QuantizedBatch batch(table, rows, 4096);
    const QuantizedRows quantized = batch.rows();
    std::vector<float> out(quantized.values, quantized.values + 4096);
    out.insert(out.end(), quantized.scales, quantized.scales + 128);
    out.insert(out.end(), quantized.scaled_sums, quantized.scaled_sums + 128);
    return out;
  });
}

TEST_F(InstructionSets, AgreeOnNormalisationActivationAndRotation) {
  TestRandom random(55);
  const std::vector<float> x = random.normals(576);
  const std::vector<float> y = random.normals(576);
  expect_agreement(Agreement::bits_unless_scalar, "rms_norm", [&](const KernelTable& table) {
    std::vector<float> out(576);
    table.rms_norm(x.data(), y.data(), 1e-5F, 576, out.data());
    return out;
  });
  expect_agreement(Agreement::bits_unless_scalar, "swiglu", [&](const KernelTable& table) {
    std::vector<float> out(576);
    table.swiglu(x.data(), y.data(), 576, out.data());
    return out;
  });
  expect_agreement(Agreement::bits_everywhere, "rope_pairs", [&](const KernelTable& table) {
    std::vector<float> out = x;
    table.rope_pairs(out.data(), y.data(), y.data() + 288, 288);
    return out;
  });
}

TEST_F(InstructionSets, AgreeOnTheFold) {
  TestRandom random(56);
  constexpr std::uint32_t tokens = 256;
  constexpr std::uint32_t head_dim = 96;
  const std::vector<float> kv = random.normals(std::size_t{2} * tokens * head_dim);
  const std::vector<float> query = random.normals(head_dim);
  for (const KvType type : kv_types) {
    const bool has_bf16_values = type == KvType::bf16 || type == KvType::i16;
    const Agreement agreement =
        has_bf16_values ? Agreement::rounded_weights : Agreement::bits_unless_scalar;
    expect_agreement(agreement, to_string(type), [&](const KernelTable& table) {
      std::vector<std::byte> k(tokens * key_bytes(type, head_dim));
      std::vector<std::byte> v(tokens * value_bytes(type, head_dim));
      const PageHead page = {k.data(), v.data(), type, tokens, head_dim};
      for (std::uint32_t t = 0; t < tokens; ++t) {
        const float* key = kv.data() + std::size_t{t} * 2 * head_dim;
        table.store_kv(key, key + head_dim, 0, t, 1, page);
      }
      std::vector<std::byte> prepared(prepared_query_bytes(head_dim));
      table.prepare_query(query.data(), 0.2F, head_dim, type, prepared.data());
      std::vector<float> scratch(fold_scratch_floats(tokens));
      std::vector<float> partial(fold_state_floats(head_dim));
      std::vector<float> state(fold_state_floats(head_dim));
      fold_reset(state.data(), head_dim);
      const std::byte* queries = prepared.data();
      const std::uint32_t begin = 3;
      for (const std::uint32_t end : {tokens, 200U}) {
        table.fold_page({page, 1, &queries, &begin, &end}, scratch.data(), partial.data());
        table.fold_merge(state.data(), partial.data(), head_dim);
      }
      std::vector<float> out(head_dim);
      table.fold_finish(state.data(), head_dim, out.data());
      return out;
    });
  }
}

TEST_F(InstructionSets, AgreeOnKeySketches) {
  TestRandom random(67);
  constexpr std::uint32_t tokens = 64;
  constexpr std::uint32_t head_dim = 96;
  const std::vector<float> keys = random.normals(std::size_t{tokens} * head_dim);
  const std::vector<float> query = random.normals(head_dim);
  const auto sketch_of = [&](const KernelTable& table, KvType type) {
    std::vector<std::byte> k(tokens * key_bytes(type, head_dim));
    std::vector<std::byte> v(tokens * value_bytes(type, head_dim));
    const PageHead page = {k.data(), v.data(), type, tokens, head_dim};
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const float* key = keys.data() + std::size_t{t} * head_dim;
      table.store_kv(key, key, 0, t, 1, page);
    }
    std::vector<float> scratch(std::size_t{3} * head_dim * lanes);
    std::vector<std::byte> sketch(key_sketch_bytes(tokens, head_dim));
    table.sketch_keys(page, scratch.data(), sketch.data());
    return sketch;
  };
  for (const KvType type : kv_types) {
    expect_agreement(Agreement::bits_everywhere, to_string(type), [&](const KernelTable& table) {
      std::vector<float> bytes;
      for (const std::byte byte : sketch_of(table, type))
        bytes.push_back(static_cast<float>(std::to_integer<int>(byte)));
      return bytes;
    });
  }
  const std::vector<std::byte> sketch = sketch_of(*tables_here().front(), KvType::f16);
  expect_agreement(Agreement::bits_unless_scalar, "scores", [&](const KernelTable& table) {
    std::vector<std::byte> prepared(sketch_query_bytes(head_dim));
    table.prepare_sketch_query(query.data(), 0.2F, head_dim, prepared.data());
    const std::byte* queries = prepared.data();
    std::vector<float> scores(tokens);
    table.sketch_scores({sketch.data(), tokens, head_dim, 1, &queries}, scores.data(), tokens);
    std::vector<float> sums(tokens / group_tokens);
    float maximum = 0;
    sums.push_back(table.sketch_weights(scores.data(), tokens, sums.data(), &maximum));
    scores.insert(scores.end(), sums.begin(), sums.end());
    return scores;
  });
}

}  // namespace
}  // namespace headrace::kernel
