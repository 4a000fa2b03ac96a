// Pages of i16: keys are integers of 13 bits with a scale per token, and so are queries, so that a
// score is an exact integer dot product of pairs; values are bf16 (kv_bf16-inl.h). Keys decide by
// powers of two, values by their size: keys are where digits count (docs/decisions/0006).
//   s[t] = (sum over blocks of 128 dims of float(dot)) * (d_k[t] * d_q)
// Layout: K [tile][dim / 2][16 tokens][2], then the scales [tile][16 tokens] as bf16; V as bf16.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

struct I16Kv : Bf16Kv {
  /// 128 * 4095 * 4095 is just below 2^31.
  static constexpr std::uint32_t dot_dims = 128;
  static constexpr float largest_value = 4095.0F;

  HEADRACE_INLINE std::uint16_t* scales_of(const PageHead& page) {
    return reinterpret_cast<std::uint16_t*>(page.k) + std::size_t{page.tokens} * page.head_dim;
  }

  HEADRACE_INLINE float largest_of(const float* x, std::uint32_t count) {
    F largest = zero();
    HEADRACE_FOR_LANES(d, count) largest = max(largest, abs(load(x + d)));
    return reduce_max(largest);
  }
  /// x / step as integers.
  HEADRACE_INLINE void quantize(const float* x, std::uint32_t count, float step,
                                std::int16_t* out) {
    // Steps below 2^-120 have no finite inverse; what they would count is nothing.
    const F inverse = set1(step > 0x1p-120F ? 1.0F / step : 0.0F);
    HEADRACE_FOR_LANES(d, count) store_int16(out + d, mul(load(x + d), inverse));
  }

  static void store_row(const float* k, const float* v, std::uint32_t token, const PageHead& page) {
    const std::uint32_t head_dim = page.head_dim;
    auto* k_column = reinterpret_cast<std::int16_t*>(page.k) +
                     std::size_t{token / lanes} * head_dim * lanes + std::size_t{token % lanes} * 2;
    // Rounded up, so that no value passes 13 bits.
    const std::uint16_t scale = bf16_not_below(largest_of(k, head_dim) / largest_value);
    scales_of(page)[token] = scale;
    for (std::uint32_t d = 0; d < head_dim; d += lanes) {
      std::int16_t values[lanes];
      quantize(k + d, lanes, bf16_value(scale), values);
      for (std::uint32_t i = 0; i < lanes; i += 2) {
        std::memcpy(k_column + std::size_t{d + i} * lanes, values + i, 2 * sizeof *values);
      }
    }
    store_value(v, token, page);
  }

  /// A query becomes [head_dim] integers and, behind them, its scale.
  static void prepare(const float* query, float scale, std::uint32_t head_dim, std::byte* out) {
    const float step = largest_of(query, head_dim) / largest_value;
    quantize(query, head_dim, step, reinterpret_cast<std::int16_t*>(out));
    const float scaled_step = step * scale;
    std::memcpy(out + std::size_t{head_dim} * 2, &scaled_step, sizeof scaled_step);
  }

  /// Dot products over `dims` dims, at most dot_dims, from those that `k` and `queries` begin with.
  template <bool IsOneStream, int Vectors, int Tiles>
  HEADRACE_INLINE void dot_products(const std::uint16_t* k, std::size_t tile_values,
                                    std::uint32_t dims, const std::uint16_t* const (&q)[Vectors],
                                    F (&sums)[Vectors][Tiles]) {
    I dots[Vectors][Tiles];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Tiles; ++j) dots[i][j] = set1_i32(0);
    }
    for (std::uint32_t d = 0; d < dims; d += 2) {
      Int16Pairs keys[Tiles];
#pragma GCC unroll 4
      for (int j = 0; j < Tiles; ++j) {
        const std::uint16_t* at = k + static_cast<std::size_t>(j) * tile_values + d * lanes;
        keys[j] = load_int16_pairs(at);
        prefetch_for<Vectors, IsOneStream>(at);
      }
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        const Int16Pairs query = set1_int16_pair(q[i] + d);
#pragma GCC unroll 4
        for (int j = 0; j < Tiles; ++j) dots[i][j] = dot2(dots[i][j], query, keys[j]);
      }
    }
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Tiles; ++j) sums[i][j] = to_float(dots[i][j]);
    }
  }

  template <int Vectors, int Tiles, bool IsOneStream = true>
  HEADRACE_INLINE void scores(const FoldInput& in, std::uint32_t tile,
                              const std::byte* const* queries, float* out, std::size_t stride) {
    const std::uint32_t head_dim = in.page.head_dim;
    const std::size_t tile_values = std::size_t{head_dim} * lanes;
    const auto* k = reinterpret_cast<const std::uint16_t*>(in.page.k) + tile * tile_values;
    const std::uint16_t* q[Vectors];
    for (int i = 0; i < Vectors; ++i) q[i] = reinterpret_cast<const std::uint16_t*>(queries[i]);
    F sums[Vectors][Tiles];
    dot_products<IsOneStream>(k, tile_values, head_dim < dot_dims ? head_dim : dot_dims, q, sums);
    for (std::uint32_t first = dot_dims; first < head_dim; first += dot_dims) {
      for (int i = 0; i < Vectors; ++i) q[i] += dot_dims;
      const std::uint32_t left = head_dim - first;
      F more[Vectors][Tiles];
      dot_products<IsOneStream>(k + std::size_t{first} * lanes, tile_values,
                                left < dot_dims ? left : dot_dims, q, more);
      for (int i = 0; i < Vectors; ++i) {
        for (int j = 0; j < Tiles; ++j) sums[i][j] = add(sums[i][j], more[i][j]);
      }
    }
    for (int j = 0; j < Tiles; ++j) {
      const F scales = load_bf16(scales_of(in.page) + (tile + static_cast<std::size_t>(j)) * lanes);
      for (int i = 0; i < Vectors; ++i) {
        float scale;
        std::memcpy(&scale, queries[i] + std::size_t{head_dim} * 2, sizeof scale);
        sums[i][j] = mul(sums[i][j], mul(scales, set1(scale)));
      }
    }
    store_scores<Vectors, Tiles>(sums, tile, out, stride);
  }
};

}  // namespace headrace::kernel::HEADRACE_ISA
