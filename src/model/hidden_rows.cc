#include "model/hidden_rows.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace {

using kernel::quant_block;

bool can_keep_rows(HiddenType type, std::uint32_t width) {
  return type != HiddenType::q8 || width % quant_block == 0;
}

std::uint32_t hidden_row_bytes(HiddenType type, std::uint32_t width) {
  switch (type) {
    case HiddenType::f32:
      return width * 4;
    case HiddenType::f16:
      return width * 2;
    case HiddenType::q8:
      return width + width / quant_block * 4;
  }
  return 0;
}

void keep_row(HiddenType type, const float* row, std::uint32_t width,
              const kernel::QuantizedRows& scratch, std::byte* out) {
  switch (type) {
    case HiddenType::f32:
      std::memcpy(out, row, width * sizeof(float));
      return;
    case HiddenType::f16: {
      // What is larger than f16 can hold stays finite.
      constexpr float largest = 65'504.0F;
      auto* const values = reinterpret_cast<ggml_fp16_t*>(out);
      for (std::uint32_t i = 0; i < width; ++i)
        values[i] = ggml_fp32_to_fp16(std::clamp(row[i], -largest, largest));
      return;
    }
    case HiddenType::q8:
      kernel::kernels().quantize_row(row, scratch);
      std::memcpy(out, scratch.values, width);
      std::memcpy(out + width, scratch.scales, width / quant_block * sizeof(float));
      return;
  }
}

void read_row(HiddenType type, const std::byte* kept, std::uint32_t width, float* row) {
  switch (type) {
    case HiddenType::f32:
      std::memcpy(row, kept, width * sizeof(float));
      return;
    case HiddenType::f16:
      ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t*>(kept), row, width);
      return;
    case HiddenType::q8: {
      const auto* const values = reinterpret_cast<const std::int8_t*>(kept);
      for (std::uint32_t first = 0; first < width; first += quant_block) {
        float scale = 0;
        std::memcpy(&scale, kept + width + first / quant_block * sizeof(float), sizeof(float));
        for (std::uint32_t i = first; i < first + quant_block; ++i)
          row[i] = scale * static_cast<float>(values[i]);
      }
      return;
    }
  }
}

void read_quantized_row(const std::byte* kept, const kernel::QuantizedRows& row) {
  std::memcpy(row.values, kept, row.width);
  std::memcpy(row.scales, kept + row.width, row.width / quant_block * sizeof(float));
  constexpr std::uint32_t half = quant_block / 2;
  for (std::uint32_t i = 0; i < row.width / half; ++i) {
    const std::int8_t* const values = row.values + std::size_t{i} * half;
    row.sums[i] = std::accumulate(values, values + half, std::int32_t{0});
  }
  for (std::uint32_t i = 0; i < row.width / quant_block; ++i)
    row.scaled_sums[i] = row.scales[i] * static_cast<float>(row.sums[2 * i] + row.sums[2 * i + 1]);
}

}  // namespace headrace
