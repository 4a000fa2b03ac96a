// MatrixMultiplier: what it computes, and that neither the batch nor the workers change a bit
// (invariant 2). The kernels are chosen once per process, so each table has a child of its own.
#include "kernel/matmul.h"

#include <ggml.h>

#include <cmath>
#include <cstdlib>
#include <memory>

#include "base/serial_parallel.h"
#include "env/thread_pool.h"
#include "kernel/kernel_test.h"
#include "kernel/test_parallel.h"

namespace headrace::kernel {
namespace {

constexpr std::uint32_t rows_max = 17;

WeightFormat float_format_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
      return WeightFormat::f32;
    case GGML_TYPE_F16:
      return WeightFormat::f16;
    case GGML_TYPE_BF16:
      return WeightFormat::bf16;
    default:
      return WeightFormat::other;
  }
}

void copy_f32(const void* row, float* out, std::int64_t width) {
  std::memcpy(out, row, static_cast<std::size_t>(width) * sizeof(float));
}

/// Random weights of any type that ggml can read, multiplied as floats.
struct OwnedMatrix {
  OwnedMatrix(ggml_type type, std::uint32_t width, std::uint32_t outputs, TestRandom& random)
      : floats(random.normals(std::size_t{width} * outputs)),
        bytes(ggml_row_size(type, width) * outputs) {
    if (type == GGML_TYPE_F32) {
      std::memcpy(bytes.data(), floats.data(), bytes.size());
    } else {
      ggml_quantize_chunk(type, floats.data(), bytes.data(), 0, outputs, width, nullptr);
    }
    matrix.to_float = type == GGML_TYPE_F32 ? copy_f32 : ggml_get_type_traits(type)->to_float;
    matrix.rows = {float_format_of(type), bytes.data(), bytes.size() / outputs, width};
    matrix.outputs = outputs;
    matrix.to_float(bytes.data(), floats.data(), static_cast<std::int64_t>(floats.size()));
  }
  OwnedMatrix(const OwnedMatrix&) = delete;
  OwnedMatrix& operator=(const OwnedMatrix&) = delete;

  std::vector<float> floats;  // what the bytes mean
  std::vector<std::byte> bytes;
  WeightMatrix matrix;
};

MatrixMultiplier new_multiplier(Parallel& parallel, std::uint32_t width_max) {
  return MatrixMultiplier::create(parallel, width_max).value();
}

/// Input rows in both forms, quantised by the kernels in use.
class Rows {
 public:
  Rows(std::uint32_t count, std::uint32_t width, TestRandom& random)
      : floats_(random.normals(std::size_t{count} * width)),
        batch_(kernels(), floats_, width),
        width_(width) {}

  InputRows from(std::uint32_t first, std::uint32_t count) {
    return {floats_.data() + std::size_t{first} * width_, batch_.rows().from_row(first), count};
  }

 private:
  std::vector<float> floats_;
  QuantizedBatch batch_;
  std::uint32_t width_;
};

class Multiplier : public KernelTest {
 protected:
  /// Runs `check` in a child process that uses this test's table.
  template <typename Check>
  void run_with_table(Check check) {
    use_new_process();
    const auto child = [&] {
      ::setenv("HEADRACE_FORCE_ISA", table.name, 1);
      EXPECT_STREQ(kernels().name, table.name);
      check();
      std::exit(HasFailure() ? 1 : 0);
    };
    EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
  }
};
HEADRACE_TEST_EVERY_TABLE(Multiplier);

/// All rows of `rows`, one at a time; `out` holds what is added to if `accumulate`.
void multiply_one_by_one(const WeightMatrix& matrix, Rows& rows, bool accumulate,
                         std::span<float> out) {
  SerialParallel serial;
  MatrixMultiplier multiplier = new_multiplier(serial, matrix.rows.width);
  for (std::uint32_t row = 0; row < rows_max; ++row) {
    float* at = out.data() + std::size_t{row} * matrix.outputs;
    const Product product = {&matrix, {at, matrix.outputs, accumulate}};
    multiplier.run(std::span(&product, 1), rows.from(row, 1));
  }
}

/// One matrix, with rows alone as the reference for rows together under several Parallels.
void expect_row_invariance(const WeightMatrix& matrix, bool accumulate, TestRandom& random) {
  static SerialParallel serial;
  static ShuffledParallel shuffled(3, 7);
  static ThreadPool two(2);
  static ThreadPool three(3);
  const std::uint32_t outputs = matrix.outputs;
  Rows rows(rows_max, matrix.rows.width, random);
  const std::vector<float> before = random.normals(std::size_t{rows_max} * outputs);
  std::vector<float> alone = before;
  multiply_one_by_one(matrix, rows, accumulate, alone);
  if (accumulate) {
    std::vector<float> sums(before.size());
    multiply_one_by_one(matrix, rows, false, sums);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = before[i] + sums[i];
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(sums, alone, "what was there, and the product"));
  }
  for (Parallel* parallel : {static_cast<Parallel*>(&serial), static_cast<Parallel*>(&shuffled),
                             static_cast<Parallel*>(&two), static_cast<Parallel*>(&three)}) {
    MatrixMultiplier many = new_multiplier(*parallel, matrix.rows.width);
    for (const std::uint32_t count : {1U, 2U, 5U, 6U, 7U, 16U, 17U}) {
      const std::size_t values = std::size_t{count} * outputs;
      std::vector<float> together(before.begin(),
                                  before.begin() + static_cast<std::ptrdiff_t>(values));
      const Product product = {&matrix, {together.data(), outputs, accumulate}};
      many.run(std::span(&product, 1), rows.from(0, count));
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(std::span(alone).subspan(0, values), together,
                                               std::to_string(count) + " rows"));
    }
  }
}

TEST_P(Multiplier, ARowOfIntegerWeightsDependsOnNeitherBatchNorWorkers) {
  run_with_table([] {
    TestRandom random(61);
    for (const FormatFacts& facts : integer_formats) {
      for (const std::uint32_t outputs : {1U, 47U, 96U, 97U, 200U}) {
        SCOPED_TRACE(std::string(facts.name) + ", outputs: " + std::to_string(outputs));
        const RandomMatrix weights(facts, facts.fit(96), outputs, random);
        const WeightMatrix matrix = {weights.rows, outputs, nullptr};
        ASSERT_NO_FATAL_FAILURE(expect_row_invariance(matrix, false, random));
        ASSERT_NO_FATAL_FAILURE(expect_row_invariance(matrix, true, random));
      }
    }
  });
}

TEST_P(Multiplier, ARowOfFloatWeightsDependsOnNeitherBatchNorWorkers) {
  run_with_table([] {
    TestRandom random(62);
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q3_K}) {
      for (const std::uint32_t outputs : {1U, 15U, 33U, 48U, 49U, 200U}) {
        SCOPED_TRACE(std::string(ggml_type_name(type)) + ", outputs: " + std::to_string(outputs));
        const OwnedMatrix weights(type, 256, outputs, random);
        ASSERT_NO_FATAL_FAILURE(expect_row_invariance(weights.matrix, false, random));
        ASSERT_NO_FATAL_FAILURE(expect_row_invariance(weights.matrix, true, random));
      }
    }
  });
}

TEST_P(Multiplier, FloatWeightsHaveTheBitsOfWhatGgmlDecodes) {
  run_with_table([] {
    TestRandom random(65);
    SerialParallel serial;
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16}) {
      for (const std::uint32_t width : {16U, 48U, 576U}) {
        constexpr std::uint32_t outputs = 117;
        const OwnedMatrix weights(type, width, outputs, random);
        WeightMatrix by_ggml = weights.matrix;
        by_ggml.rows.format = WeightFormat::other;
        const std::vector<float> rows = random.normals(std::size_t{rows_max} * width);
        MatrixMultiplier multiplier = new_multiplier(serial, 576);
        for (std::uint32_t count = 1; count <= rows_max; ++count) {
          const InputRows input = {rows.data(), {}, count};
          std::vector<float> expected(std::size_t{count} * outputs, 1.5F);
          std::vector<float> actual = expected;
          const Product decoded = {&by_ggml, {expected.data(), outputs, count % 2 == 0}};
          const Product direct = {&weights.matrix, {actual.data(), outputs, count % 2 == 0}};
          multiplier.run(std::span(&decoded, 1), input);
          multiplier.run(std::span(&direct, 1), input);
          ASSERT_NO_FATAL_FAILURE(expect_same_bits(expected, actual, ggml_type_name(type)))
              << count << " rows of " << width;
        }
      }
    }
  });
}

TEST_P(Multiplier, FloatWeightsMeanWhatGgmlSays) {
  run_with_table([] {
    TestRandom random(63);
    constexpr std::uint32_t outputs = 53;
    SerialParallel serial;
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q2_K,
                                 GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K}) {
      constexpr std::uint32_t width = 512;
      const OwnedMatrix weights(type, width, outputs, random);
      Rows rows(3, width, random);
      const InputRows input = rows.from(0, 3);
      std::vector<float> out(std::size_t{3} * outputs);
      const Product product = {&weights.matrix, {out.data(), outputs, false}};
      new_multiplier(serial, width).run(std::span(&product, 1), input);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const float* a = input.floats + i / outputs * width;
        const float* w = weights.floats.data() + i % outputs * width;
        double expected = 0;
        double magnitude = 0;
        for (std::uint32_t k = 0; k < width; ++k) {
          const double term = static_cast<double>(a[k]) * static_cast<double>(w[k]);
          expected += term;
          magnitude += std::fabs(term);
        }
        // Each term meets at most two roundings per addition; they are random and mostly cancel.
        ASSERT_NEAR(static_cast<double>(out[i]), expected, 0x1p-24 * 32 * magnitude)
            << ggml_type_name(type) << ", value " << i;
      }
    }
  });
}

TEST_P(Multiplier, ProductsOfAStepShareTheirInputAndNothingElse) {
  run_with_table([] {
    TestRandom random(64);
    const OwnedMatrix floats(GGML_TYPE_F32, 96, 50, random);
    const RandomMatrix narrow(integer_formats[1], 96, 33, random);
    const RandomMatrix wide(integer_formats[4], 96, 130, random);
    const WeightMatrix matrices[] = {floats.matrix,
                                     {narrow.rows, 33, nullptr},
                                     {wide.rows, 130, nullptr},
                                     {narrow.rows, 33, nullptr}};
    ShuffledParallel shuffled(2, 8);
    MatrixMultiplier multiplier = new_multiplier(shuffled, 160);  // wider than these matrices
    for (const std::uint32_t count : {1U, 4U}) {
      Rows rows(count, 96, random);
      std::vector<std::vector<float>> together;
      std::vector<std::vector<float>> apart;
      std::vector<Product> products;
      for (const WeightMatrix& matrix : matrices) {
        together.emplace_back(std::size_t{count} * matrix.outputs);
        apart.push_back(together.back());
        products.push_back({&matrix, {together.back().data(), matrix.outputs, false}});
      }
      multiplier.run(products, rows.from(0, count));
      for (std::size_t i = 0; i < products.size(); ++i) {
        Product alone = products[i];
        alone.out.data = apart[i].data();
        multiplier.run(std::span(&alone, 1), rows.from(0, count));
        expect_same_bits(apart[i], together[i], "product " + std::to_string(i));
      }
    }
  });
}

TEST(MultiplierDeathTest, AMatrixWiderThanThePanelsIsABug) {
  SerialParallel serial;
  MatrixMultiplier multiplier = new_multiplier(serial, 64);
  WeightMatrix matrix;
  matrix.rows.width = 96;
  const Product product = {&matrix, {}};
  EXPECT_DEATH(multiplier.run(std::span(&product, 1), {}), "wider than the panels");
}

}  // namespace
}  // namespace headrace::kernel
