// Key sketches: 4 bits per channel of every key, from which recall estimates which tokens a query
// will read (docs/decisions/0009). Keys are taken less the mean of their page, which most of a key
// is, and have a scale per token:
//   k[t][d] ~ mean[d] + (nibble[t][d] - 7.5) * scale[t]
//   s[t]    ~ q . mean + scale[t] * q_step * (q8 . nibble[t] - 7.5 * sum of q8)
// Layout: mean [head_dim] as f16, then tile by tile scales [16 tokens] as f16 and bytes
// [head_dim / 8][16 tokens][4]: dims 8i..8i+3 in the lower halves, 8i+4..8i+7 in the upper ones.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

struct SketchTile {
  static constexpr std::size_t scale_bytes = lanes * 2;
  static constexpr std::size_t bytes(std::uint32_t head_dim) {
    return scale_bytes + std::size_t{lanes} * head_dim / 2;
  }
};

static void sketch_keys(const PageHead& page, float* scratch, std::byte* sketch) {
  const std::uint32_t head_dim = page.head_dim;
  const std::size_t tile_floats = std::size_t{head_dim} * lanes;
  float* const k = scratch;
  float* const v = k + tile_floats;
  float* const sums = v + tile_floats;
  const std::uint32_t tiles = page.tokens / lanes;
  std::memset(sums, 0, tile_floats * sizeof(float));
  for (std::uint32_t tile = 0; tile < tiles; ++tile) {
    load_tile(page, tile, k, v);
    HEADRACE_FOR_LANES(i, tile_floats) store(sums + i, add(load(sums + i), load(k + i)));
  }
  auto* const means = reinterpret_cast<std::uint16_t*>(sketch);
  tile_means(sums, page.tokens, head_dim, means);
  for (std::uint32_t tile = 0; tile < tiles; ++tile) {
    load_tile(page, tile, k, v);
    shift_tile(k, means, -1.0F, head_dim);
    std::byte* const out = sketch + std::size_t{head_dim} * 2 + tile * SketchTile::bytes(head_dim);
    F largest = zero();
    HEADRACE_FOR_LANES(i, tile_floats) largest = max(largest, abs(load(k + i)));
    auto* const halves = reinterpret_cast<std::uint16_t*>(out);
    store_f16(halves, mul(largest, set1(1.0F / 7.5F)));
    alignas(64) float inverse[lanes];
    store(inverse, load_f16(halves));
    for (float& x : inverse) x = x > 0.0F && x < 65520.0F ? 1.0F / x : 0.0F;
    auto* const bytes = reinterpret_cast<std::uint8_t*>(out + SketchTile::scale_bytes);
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      const F scaled = mul(load(k + std::size_t{d} * lanes), load(inverse));
      std::int8_t nibbles[lanes];
      store_int8(nibbles, max(zero(), min(set1(15.0F), add(scaled, set1(7.5F)))));
      std::uint8_t* const row = bytes + std::size_t{d / 8} * lanes * 4 + d % 4;
      for (std::uint32_t t = 0; t < lanes; ++t) {
        const auto nibble = static_cast<std::uint8_t>(nibbles[t]);
        if (d % 8 < 4) {
          row[std::size_t{t} * 4] = nibble;
        } else {
          row[std::size_t{t} * 4] =
              static_cast<std::uint8_t>(row[std::size_t{t} * 4] | nibble << 4);
        }
      }
    }
  }
}

/// [head_dim] floats, [head_dim] bytes, then the step of the bytes and 7.5 times their sum.
struct SketchQuery {
  const float* values;
  const std::int8_t* bytes;
  float step, bias;
  SketchQuery(const std::byte* query, std::uint32_t head_dim)
      : values(reinterpret_cast<const float*>(query)),
        bytes(reinterpret_cast<const std::int8_t*>(query + std::size_t{head_dim} * 4)) {
    std::memcpy(&step, query + std::size_t{head_dim} * 5, 4);
    std::memcpy(&bias, query + std::size_t{head_dim} * 5 + 4, 4);
  }
};

static void prepare_sketch_query(const float* query, float scale, std::uint32_t head_dim,
                                 std::byte* out) {
  auto* const values = reinterpret_cast<float*>(out);
  auto* const bytes = reinterpret_cast<std::int8_t*>(out + std::size_t{head_dim} * 4);
  F largest = zero();
  HEADRACE_FOR_LANES(d, head_dim) {
    const F x = mul(load(query + d), set1(scale));
    store(values + d, x);
    largest = max(largest, abs(x));
  }
  const float most = reduce_max(largest);
  const F inverse = set1(most > 0x1p-120F ? 127.0F / most : 0.0F);
  std::int32_t sum = 0;
  HEADRACE_FOR_LANES(d, head_dim) sum += store_int8(bytes + d, mul(load(values + d), inverse));
  const float step = most / 127.0F;
  const float bias = 7.5F * static_cast<float>(sum);
  std::memcpy(out + std::size_t{head_dim} * 5, &step, 4);
  std::memcpy(out + std::size_t{head_dim} * 5 + 4, &bias, 4);
}

template <int Vectors>
static void sketch_scores_of(const SketchInput& in, const std::byte* const* queries, float* scores,
                             std::size_t stride) {
  const std::uint32_t head_dim = in.head_dim;
  const auto* const means = reinterpret_cast<const std::uint16_t*>(in.sketch);
  const std::byte* tile = in.sketch + std::size_t{head_dim} * 2;
  const std::int8_t* bytes[Vectors];
  F steps[Vectors];
  F biases[Vectors];
  F of_mean[Vectors];
  for (int i = 0; i < Vectors; ++i) {
    const SketchQuery query(queries[i], head_dim);
    bytes[i] = query.bytes;
    steps[i] = set1(query.step);
    biases[i] = set1(query.bias);
    F sum = zero();
    HEADRACE_FOR_LANES(d, head_dim) sum = fma(load(query.values + d), load_f16(means + d), sum);
    of_mean[i] = set1(reduce_add(sum));
  }
  for (std::uint32_t t = 0; t < in.tokens; t += lanes, tile += SketchTile::bytes(head_dim)) {
    I dots[Vectors];
    for (int i = 0; i < Vectors; ++i) dots[i] = set1_i32(0);
    const auto* at = reinterpret_cast<const std::uint8_t*>(tile + SketchTile::scale_bytes);
    for (std::uint32_t d = 0; d < head_dim; d += 8, at += std::size_t{lanes} * 4) {
      const Nibbles keys = load_nibbles(at);
      prefetch_for<1>(at);
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        dots[i] = dot4<false>(dots[i], low_of(keys), bytes[i] + d);
        dots[i] = dot4<false>(dots[i], high_of(keys), bytes[i] + d + 4);
      }
    }
    const F scales = load_f16(reinterpret_cast<const std::uint16_t*>(tile));
    for (int i = 0; i < Vectors; ++i) {
      const F product = mul(sub(to_float(dots[i]), biases[i]), mul(scales, steps[i]));
      store(scores + static_cast<std::size_t>(i) * stride + t, add(of_mean[i], product));
    }
  }
}

static void sketch_scores(const SketchInput& in, float* scores, std::size_t stride) {
  constexpr int together = 6;
  for (std::uint32_t first = 0; first < in.vectors; first += together) {
    with_count<together>(in.vectors - first, [&]<int Vectors>() {
      sketch_scores_of<Vectors>(in, in.queries + first, scores + first * stride, stride);
    });
  }
}

static float sketch_weights(const float* scores, std::uint32_t count, float* sums_of_4,
                            float* maximum) {
  F largest = set1(-__builtin_inff());
  HEADRACE_FOR_LANES(t, count) largest = max(largest, load(scores + t));
  *maximum = reduce_max(largest);
  const F most = set1(*maximum);
  F sum = zero();
  HEADRACE_FOR_LANES(t, count) {
    const F weights = exp2_lanes(sub(load(scores + t), most));
    store_sums_of_4(sums_of_4 + t / group_tokens, weights);
    sum = add(sum, weights);
  }
  return reduce_add(sum);
}

}  // namespace headrace::kernel::HEADRACE_ISA
