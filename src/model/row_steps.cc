#include "model/row_steps.h"

#include <array>
#include <cmath>

namespace headrace {

void carve_quantized(Carver& carver, std::size_t count, std::uint32_t width,
                     kernel::QuantizedRows& rows) {
  const std::size_t blocks = (width + kernel::quant_block - 1) / kernel::quant_block;
  carver.take(rows.values, count * blocks * kernel::quant_block);
  carver.take(rows.scales, count * blocks);
  carver.take(rows.scaled_sums, count * blocks);
  carver.take(rows.sums, count * blocks * 2);
}

bool reads_integers_only(const LayerWeights& layer) {
  return kernel::is_integer(layer.query.weights.rows.format) &&
         kernel::is_integer(layer.key.weights.rows.format) &&
         kernel::is_integer(layer.value.weights.rows.format);
}

void multiply_rows(Parallel& parallel, kernel::MatrixMultiplier& multiplier,
                   std::initializer_list<std::pair<const Linear*, kernel::OutputRows>> products,
                   const kernel::InputRows& input) {
  std::array<kernel::Product, 4> list;
  std::size_t count = 0;
  bool quantize = false;
  for (const auto& [linear, out] : products) {
    list[count++] = {&linear->weights, out};
    quantize = quantize || kernel::is_integer(linear->weights.rows.format);
  }
  const std::uint32_t width = input.quantized.width;
  if (quantize && input.floats != nullptr) {
    for_rows(parallel, input.count, [&](std::uint32_t row) {
      kernel::kernels().quantize_row(input.floats + std::size_t{row} * width,
                                     input.quantized.from_row(row));
    });
  }
  multiplier.run({list.data(), count}, input);
  for (const auto& [linear, out] : products) {
    if (linear->bias == nullptr) continue;
    for (std::uint32_t row = 0; row < input.count; ++row) {
      kernel::kernels().add(out.data + row * out.stride, linear->bias, linear->weights.outputs);
    }
  }
}

void fill_angles(const RopeSpec& rope, double position, float* cosine, float* sine) {
  for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double angle = position * rope.frequencies[i];
    cosine[i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
    sine[i] = static_cast<float>(std::sin(angle)) * rope.magnitude;
  }
}

void norm_heads(const ModelShape& shape, const float* weight, std::uint32_t heads, float* row) {
  if (weight == nullptr) return;
  for (std::uint32_t head = 0; head < heads; ++head) {
    float* const values = row + std::size_t{head} * shape.head_dim;
    kernel::kernels().rms_norm(values, weight, shape.norm_epsilon, shape.head_dim, values);
  }
}

void rotate_heads(const ModelShape& shape, std::uint32_t heads, const float* cosine,
                  const float* sine, float* row) {
  const auto turn = shape.rope_pairs == RopePairs::halves ? kernel::kernels().rope_halves
                                                          : kernel::kernels().rope_pairs;
  for (std::uint32_t head = 0; head < heads; ++head)
    turn(row + std::size_t{head} * shape.head_dim, cosine, sine, shape.rotated_dims / 2);
}

}  // namespace headrace
