// Pages of q8: 32 values share an f16 scale. Queries are quantised the same way, so that a score is
// made of exact integer dot products; weighted values are summed in f32.
//   s[t] = fma(float(dot of block b), d_k[b][t] * d_q[b], s[t]) over blocks b in order
//   o[d] = fma(p[t] * d_v[b][t], v[t][d], o[d]) over t in order
// Layout, tile by tile: K [dim / 4][16 tokens][4] and V [16 tokens][dim] as bytes, both followed by
// the tile's scales [dim / 32][16 tokens], so that each is one stream. K bytes count from 128, as
// the unsigned side of the machine's dot product wants them; V bytes are signed.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

struct Q8Kv {
  using Weight = float;
  static constexpr std::uint32_t block = quant_block;
  static constexpr bool keeps_groups_together = false;
#if defined(HEADRACE_ISA_AVX512)
  static constexpr int score_vectors = 6;
  static constexpr int score_tiles = 2;  // 12 dot products, 12 sums, 2 keys
  static constexpr int value_vectors = 6;
#else
  static constexpr int score_vectors = 2;
  static constexpr int score_tiles = 1;
  static constexpr int value_vectors = 2;
#endif
  static constexpr bool odd_parts = false;

  /// Bytes of K, or of V, of one tile.
  HEADRACE_INLINE std::size_t tile_bytes(std::uint32_t head_dim) {
    return std::size_t{head_dim} * lanes + std::size_t{head_dim / block} * lanes * 2;
  }
  /// Scales of 16 tokens for the block of `d`, in the tile that begins at `tile`.
  HEADRACE_INLINE std::uint16_t* scales_of(std::byte* tile, std::uint32_t head_dim,
                                           std::uint32_t d) {
    return reinterpret_cast<std::uint16_t*>(tile + std::size_t{head_dim} * lanes) +
           std::size_t{d / block} * lanes;
  }

  /// 32 values as bytes; returns their scale as f16, which is also what they were divided by.
  HEADRACE_INLINE std::uint16_t quantize(const float* x, std::int8_t* out) {
    const F a = load(x);
    const F b = load(x + lanes);
    const float largest = reduce_max(max(abs(a), abs(b)));
    std::uint16_t halves[lanes];
    store_f16(halves, set1(largest / 127.0F));
    alignas(64) float scale[lanes];
    store(scale, load_f16(halves));
    // A scale that f16 rounds to nothing, or to infinity, keeps nothing.
    const bool usable = scale[0] > 0.0F && scale[0] < 65520.0F;
    const F inverse = set1(usable ? 1.0F / scale[0] : 0.0F);
    const F limit = set1(127.0F);
    const auto clamp = [&](F v) { return max(min(mul(v, inverse), limit), sub(zero(), limit)); };
    store_int8(out, clamp(a));
    store_int8(out + lanes, clamp(b));
    return usable ? halves[0] : 0;
  }

  static void store_row(const float* k, const float* v, std::uint32_t token, const PageHead& page) {
    const std::uint32_t tile = token / lanes;
    const std::uint32_t column = token % lanes;
    std::byte* k_tile = page.k + tile * tile_bytes(page.head_dim);
    std::byte* v_tile = page.v + tile * tile_bytes(page.head_dim);
    auto* k_column = reinterpret_cast<std::uint8_t*>(k_tile) + std::size_t{column} * 4;
    auto* v_row = reinterpret_cast<std::int8_t*>(v_tile) + std::size_t{column} * page.head_dim;
    for (std::uint32_t d = 0; d < page.head_dim; d += block) {
      std::int8_t values[block];
      scales_of(k_tile, page.head_dim, d)[column] = quantize(k + d, values);
      for (std::uint32_t i = 0; i < block; ++i) {
        k_column[std::size_t{(d + i) / 4} * lanes * 4 + i % 4] =
            static_cast<std::uint8_t>(values[i] + 128);
      }
      scales_of(v_tile, page.head_dim, d)[column] = quantize(v + d, v_row + d);
    }
  }

  /// A query: [head_dim] bytes, then per block its scale and -128 * the sum of its bytes.
  struct QueryBlock {
    float scale;
    std::int32_t start;
  };
  HEADRACE_INLINE const QueryBlock* blocks_of(const std::byte* query, std::uint32_t head_dim) {
    return reinterpret_cast<const QueryBlock*>(query + head_dim);
  }

  static void prepare(const float* query, float scale, std::uint32_t head_dim, std::byte* out) {
    auto* values = reinterpret_cast<std::int8_t*>(out);
    auto* blocks = reinterpret_cast<QueryBlock*>(out + head_dim);
    for (std::uint32_t d = 0; d < head_dim; d += block) {
      const F a = mul(load(query + d), set1(scale));
      const F b = mul(load(query + d + lanes), set1(scale));
      const float largest = reduce_max(max(abs(a), abs(b)));
      const F inverse = set1(largest > 0x1p-120F ? 127.0F / largest : 0.0F);
      const std::int32_t sum =
          store_int8(values + d, mul(a, inverse)) + store_int8(values + d + lanes, mul(b, inverse));
      blocks[d / block] = {largest / 127.0F, -128 * sum};
    }
  }

  /// Weights overwrite the scores.
  static Weight* weights_of(float* scratch, std::size_t) { return scratch; }
  HEADRACE_INLINE void store_weights(Weight* out, F p) { store(out, p); }

  HEADRACE_INLINE std::size_t key_tile_bytes(std::uint32_t head_dim) {
    return tile_bytes(head_dim);
  }
  /// Of a group of tokens, but for the scales.
  HEADRACE_INLINE ByteRange values_of(const PageHead& page, std::uint32_t group) {
    const std::uint32_t token = group * group_tokens;
    return {page.v + token / lanes * tile_bytes(page.head_dim) + token % lanes * page.head_dim,
            std::size_t{page.head_dim} * group_tokens};
  }

  template <int Vectors, int Tiles, bool IsOneStream = true>
  HEADRACE_INLINE void scores(const FoldInput& in, std::uint32_t tile,
                              const std::byte* const* queries, float* out, std::size_t stride) {
    const PageHead& page = in.page;
    const std::size_t tile_stride = tile_bytes(page.head_dim);
    std::byte* const k_tile = page.k + tile * tile_stride;
    const auto* k = reinterpret_cast<const std::uint8_t*>(k_tile);
    F sums[Vectors][Tiles];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Tiles; ++j) sums[i][j] = zero();
    }
    for (std::uint32_t d = 0; d < page.head_dim; d += block) {
      I dots[Vectors][Tiles];
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        const I start = set1_i32(blocks_of(queries[i], page.head_dim)[d / block].start);
        for (int j = 0; j < Tiles; ++j) dots[i][j] = start;
      }
#pragma GCC unroll 8
      for (std::uint32_t four = 0; four < block; four += 4) {
        W keys[Tiles];
#pragma GCC unroll 2
        for (int j = 0; j < Tiles; ++j) {
          const std::uint8_t* at =
              k + static_cast<std::size_t>(j) * tile_stride + std::size_t{d + four} * lanes;
          keys[j] = load_weights(at);
          prefetch_for<Vectors, IsOneStream>(at);
        }
#pragma GCC unroll 6
        for (int i = 0; i < Vectors; ++i) {
          const auto* q = reinterpret_cast<const std::int8_t*>(queries[i]) + d + four;
#pragma GCC unroll 2
          for (int j = 0; j < Tiles; ++j) dots[i][j] = dot4<true>(dots[i][j], keys[j], q);
        }
      }
#pragma GCC unroll 2
      for (int j = 0; j < Tiles; ++j) {
        const F scales = load_f16(
            scales_of(k_tile + static_cast<std::size_t>(j) * tile_stride, page.head_dim, d));
#pragma GCC unroll 6
        for (int i = 0; i < Vectors; ++i) {
          const float scale = blocks_of(queries[i], page.head_dim)[d / block].scale;
          sums[i][j] = fma(to_float(dots[i][j]), mul(scales, set1(scale)), sums[i][j]);
        }
      }
    }
    store_scores<Vectors, Tiles>(sums, tile, out, stride);
  }

  template <int Vectors, int Parts>
  HEADRACE_INLINE void value_sums(const FoldInput& in, std::uint32_t d, FoldRange range,
                                  const Weight* weights, std::size_t stride, float* const* out) {
    constexpr int blocks = Parts / 2;
    const PageHead& page = in.page;
    F sums[Vectors][Parts];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Parts; ++j) sums[i][j] = zero();
    }
    for (std::uint32_t tile = range.first_tile; tile < range.end_tile; ++tile) {
      std::byte* const v_tile = page.v + tile * tile_bytes(page.head_dim);
      const auto* v = reinterpret_cast<const std::int8_t*>(v_tile) + d;
      alignas(64) float scaled[Vectors][blocks][lanes];
      for (int b = 0; b < blocks; ++b) {
        const F scales =
            load_f16(scales_of(v_tile, page.head_dim, d + static_cast<std::uint32_t>(b) * block));
        for (int i = 0; i < Vectors; ++i) {
          const F p = load(weights + static_cast<std::size_t>(i) * stride + tile * lanes);
          store(scaled[i][b], mul(p, scales));
        }
      }
      for (std::uint32_t t = 0; t < lanes; ++t) {
        F values[Parts];
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) {
          const std::int8_t* at =
              v + std::size_t{t} * page.head_dim + static_cast<std::size_t>(j) * lanes;
          values[j] = load_int8(at);
          if (j % 4 == 0) prefetch_for<Vectors>(at);
        }
#pragma GCC unroll 6
        for (int i = 0; i < Vectors; ++i) {
#pragma GCC unroll 2
          for (int b = 0; b < blocks; ++b) {
            const F p = set1(scaled[i][b][t]);
            sums[i][2 * b] = fma(p, values[2 * b], sums[i][2 * b]);
            sums[i][2 * b + 1] = fma(p, values[2 * b + 1], sums[i][2 * b + 1]);
          }
        }
      }
    }
    store_values<Vectors, Parts>(sums, d, out);
  }

  /// The same over some groups of tokens.
  template <int Vectors, int Parts>
  HEADRACE_INLINE void group_sums(const FoldInput& in, std::uint32_t d, TokenGroups chosen,
                                  const Weight* weights, std::size_t stride, float* const* out) {
    constexpr int blocks = Parts / 2;
    const PageHead& page = in.page;
    F sums[Vectors][Parts];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Parts; ++j) sums[i][j] = zero();
    }
    for (std::uint32_t group = 0; group < chosen.count; ++group) {
      const std::uint32_t first = chosen.group[group] * group_tokens;
      const Weight* const of_group = weights + std::size_t{group} * group_tokens;
      std::byte* const v_tile = page.v + first / lanes * tile_bytes(page.head_dim);
      const auto* v = reinterpret_cast<const std::int8_t*>(v_tile) + d;
      float scales[blocks][lanes];
      for (int b = 0; b < blocks; ++b) {
        store(scales[b], load_f16(scales_of(v_tile, page.head_dim,
                                            d + static_cast<std::uint32_t>(b) * block)));
      }
      for (std::uint32_t t = first; t < first + group_tokens; ++t) {
        F values[Parts];
        for (int j = 0; j < Parts; ++j) {
          values[j] = load_int8(v + std::size_t{t % lanes} * page.head_dim +
                                static_cast<std::size_t>(j) * lanes);
        }
        for (int i = 0; i < Vectors; ++i) {
          const float weight = of_group[static_cast<std::size_t>(i) * stride + t - first];
          for (int b = 0; b < blocks; ++b) {
            const F p = set1(weight * scales[b][t % lanes]);
            sums[i][2 * b] = fma(p, values[2 * b], sums[i][2 * b]);
            sums[i][2 * b + 1] = fma(p, values[2 * b + 1], sums[i][2 * b + 1]);
          }
        }
      }
    }
    store_values<Vectors, Parts>(sums, d, out);
  }
};

}  // namespace headrace::kernel::HEADRACE_ISA
