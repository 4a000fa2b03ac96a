// Hidden states as they are kept: what the matrices of a layer's keys and values read, which is the
// residual stream behind the layer's norm, a row for each token. Keys and values can be computed
// from them again, so whoever keeps them can let those go (docs/decisions/0012-hidden-states.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/kernels.h"

namespace headrace {

/// How hidden states are kept.
enum class HiddenType : std::uint8_t {
  f32,
  f16,
  q8,  ///< as kernels of integer weights read them: 8 bits, and an f32 scale for 32 values
};

/// Whether rows of `width` values can be kept so.
bool can_keep_rows(HiddenType type, std::uint32_t width);
std::uint32_t hidden_row_bytes(HiddenType type, std::uint32_t width);

/// Writes a row of `width` values in hidden_row_bytes(). `scratch` has room for a row of q8.
void keep_row(HiddenType type, const float* row, std::uint32_t width,
              const kernel::QuantizedRows& scratch, std::byte* out);
/// The values that a row is kept with.
void read_row(HiddenType type, const std::byte* kept, std::uint32_t width, float* row);
/// A row of q8 as quantize_row() made it. `row.width` is set.
void read_quantized_row(const std::byte* kept, const kernel::QuantizedRows& row);

}  // namespace headrace
