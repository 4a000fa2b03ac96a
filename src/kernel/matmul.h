// Matrix products of one step: splits the outputs of one or several matrices over the same rows
// into tasks for the workers. The split changes nothing: each output element is computed whole by
// one task (invariant 2).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/aligned_buffer.h"
#include "base/parallel.h"
#include "headrace/result.h"
#include "kernel/kernels.h"

namespace headrace::kernel {

/// Turns one stored row into f32; needed for WeightFormat::other only. ggml's to_float.
using RowToFloat = void (*)(const void* row, float* out, std::int64_t width);

/// A weight matrix: `outputs` rows of `rows.width` weights.
struct WeightMatrix {
  WeightRows rows;
  std::uint32_t outputs = 0;
  RowToFloat to_float = nullptr;
};

/// The rows that go in, in the two forms that formats want. `floats` may be null if all matrices
/// are of integer formats, `quantized.values` if none is.
struct InputRows {
  const float* floats = nullptr;  ///< [count][width]
  QuantizedRows quantized;
  std::uint32_t count = 0;
};

/// One product of a step.
struct Product {
  const WeightMatrix* matrix = nullptr;
  OutputRows out;
};

/// Owns the panels that workers unpack weights into. Used by one thread at a time.
class MatrixMultiplier {
 public:
  /// Room for matrices up to `width_max` inputs wide. Errors: out_of_budget when memory cannot be
  /// had.
  static Result<MatrixMultiplier> create(Parallel& parallel, std::uint32_t width_max);

  /// Computes all `products` over the same input. Widths must equal the input's.
  void run(std::span<const Product> products, const InputRows& input);

 private:
  MatrixMultiplier(Parallel& parallel, std::uint32_t width_max, AlignedBuffer scratch)
      : parallel_(&parallel), width_max_(width_max), scratch_(std::move(scratch)) {}

  std::byte* worker_scratch(std::size_t worker);
  IntegerPanel worker_panel(std::size_t worker);
  void run_task(const Product& product, const InputRows& input, std::uint32_t first,
                std::uint32_t columns, std::size_t worker);

  Parallel* parallel_;
  std::uint32_t width_max_;
  AlignedBuffer scratch_;
};

}  // namespace headrace::kernel
