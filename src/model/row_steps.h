// What a layer does to single rows, for the forward pass and for KvProjector: the same bits in
// both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/parallel.h"
#include "kernel/matmul.h"
#include "model/model.h"

namespace headrace {

/// Calls `callable(row)` for rows [0, count), some of them in one task.
template <typename Callable>
void for_rows(Parallel& parallel, std::uint32_t count, Callable callable) {
  constexpr std::uint32_t rows_per_task = 8;
  if (count == 1) return callable(0U);
  const std::size_t tasks = (count + rows_per_task - 1) / rows_per_task;
  parallel.run(tasks, [&](std::size_t task, std::size_t) {
    const auto first = static_cast<std::uint32_t>(task * rows_per_task);
    for (std::uint32_t row = first; row < std::min(count, first + rows_per_task); ++row)
      callable(row);
  });
}

/// Takes room for `count` quantised rows of up to `width` values.
void carve_quantized(Carver& carver, std::size_t count, std::uint32_t width,
                     kernel::QuantizedRows& rows);

/// Whether a layer's queries, keys and values read their input quantised, and never as it is.
bool reads_integers_only(const LayerWeights& layer);

/// Products of the same input rows with several matrices, and their biases. Quantises the rows
/// where a matrix wants that, unless they are given in that form only.
void multiply_rows(Parallel& parallel, kernel::MatrixMultiplier& multiplier,
                   std::initializer_list<std::pair<const Linear*, kernel::OutputRows>> products,
                   const kernel::InputRows& input);

/// Cosines and sines [pair] by which heads of a token at `position` turn.
void fill_angles(const RopeSpec& rope, double position, float* cosine, float* sine);

/// Norms `heads` heads of a row, each by itself. `weight` may be null: the model norms no heads.
void norm_heads(const ModelShape& shape, const float* weight, std::uint32_t heads, float* row);

/// Turns `heads` heads of a row.
void rotate_heads(const ModelShape& shape, std::uint32_t heads, const float* cosine,
                  const float* sine, float* row);

}  // namespace headrace
