// Pool pages for the tests of codecs.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "kernel/kernels.h"
#include "page/shape.h"

namespace headrace {

inline std::string describe(const PagePlan& plan) {
  const PageShape& shape = plan.shape;
  return std::string(to_string(shape.type)) + ", " + std::to_string(plan.tokens_held) + " of " +
         std::to_string(shape.tokens) + " tokens, " + std::to_string(shape.kv_heads) + " x " +
         std::to_string(shape.head_dim);
}

/// A page whose values are as those of a model: normal, by a scale and (for keys) around a mean of
/// their dim. The same for the same arguments.
inline std::vector<std::byte> model_page(const PagePlan& plan, unsigned seed = 1) {
  const PageShape& shape = plan.shape;
  std::mt19937 random(seed);
  // Sums of bytes, not std::normal_distribution: the same numbers in every library.
  const auto normal = [&] {
    int sum = 0;
    for (int i = 0; i < 6; ++i) sum += static_cast<int>(random() % 256) - 128;
    return static_cast<float>(sum) / 181.0F;
  };
  std::vector<std::byte> page(shape.bytes());
  std::vector<float> k(shape.head_dim);
  std::vector<float> v(shape.head_dim);
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    const kernel::PageHead target = {page.data() + shape.k_offset(head),
                                     page.data() + shape.v_offset(head), shape.type, shape.tokens,
                                     shape.head_dim};
    std::vector<float> mean(shape.head_dim);
    std::vector<float> scale(shape.head_dim);
    for (std::uint32_t dim = 0; dim < shape.head_dim; ++dim) {
      mean[dim] = 3.0F * normal();
      scale[dim] = std::fabs(normal()) + 0.125F;
    }
    for (std::uint32_t token = 0; token < plan.tokens_held; ++token) {
      for (std::uint32_t dim = 0; dim < shape.head_dim; ++dim) {
        k[dim] = mean[dim] + scale[dim] * normal();
        v[dim] = 0.25F * scale[dim] * normal();
      }
      kernel::kernels().store_kv(k.data(), v.data(), 0, token, 1, target);
    }
  }
  return page;
}

/// A page whose values are all bit patterns that its type allows in the pool.
inline std::vector<std::byte> noise_page(const PagePlan& plan, unsigned seed = 1) {
  std::vector<std::byte> page = model_page(plan, seed);
  std::mt19937 random(seed);
  for (std::byte& byte : page) {
    if (byte != std::byte{0}) byte = static_cast<std::byte>(random());
  }
  return page;
}

}  // namespace headrace
