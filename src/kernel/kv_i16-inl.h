// Pages of i16: keys are integers of 13 bits with a scale per token, and so are queries, so that a
// score is an exact integer dot product of pairs; values are bf16 (kv_bf16-inl.h). Keys decide by
// powers of two, values by their size: keys are where digits count (docs/decisions/0006).
//   s[t] = (sum over blocks of 128 dims of float(dot)) * (d_k[t] * d_q)
// Layout: K [token / 4][dim / 8][4 tokens][8], then the scales [token] as bf16; V as bf16. So what
// recall chooses together lies together: 4 tokens, line by line.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

struct I16Kv : Bf16Kv {
  /// 128 * 4095 * 4095 is just below 2^31: what a token's lanes hold together fits one.
  static constexpr std::uint32_t dot_dims = 128;
  /// Of a token, in a line of 64 bytes. A dot product of pairs leaves four sums for each token.
  static constexpr std::uint32_t line_dims = 8;
  static constexpr bool keeps_groups_together = true;
  static constexpr int score_tiles = 1;
  static constexpr int tile_groups = lanes / group_tokens;
  /// Whose keys are asked for before they are read, where only some groups are.
  static constexpr std::uint32_t groups_ahead = 8;
#if defined(HEADRACE_ISA_AVX512)
  static constexpr int groups_together = tile_groups;  // 4 keys and 24 sums in 32 registers
#else
  static constexpr int groups_together = 1;
#endif
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
    auto* row = reinterpret_cast<std::int16_t*>(page.k) +
                std::size_t{token / group_tokens} * group_tokens * head_dim +
                std::size_t{token % group_tokens} * line_dims;
    // Rounded up, so that no value passes 13 bits.
    const std::uint16_t scale = bf16_not_below(largest_of(k, head_dim) / largest_value);
    scales_of(page)[token] = scale;
    for (std::uint32_t d = 0; d < head_dim; d += lanes) {
      std::int16_t values[lanes];
      quantize(k + d, lanes, bf16_value(scale), values);
      for (std::uint32_t i = 0; i < lanes; i += line_dims) {
        std::memcpy(row + std::size_t{d + i} * group_tokens, values + i,
                    line_dims * sizeof *values);
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

  /// Dot products over `dims` dims, at most dot_dims, from those that the keys of four groups and
  /// the queries begin with.
  template <bool IsOneStream, int Vectors>
  HEADRACE_INLINE void dot_products(const std::uint16_t* const (&k)[tile_groups],
                                    std::uint32_t dims, const std::uint16_t* const (&q)[Vectors],
                                    F (&sums)[Vectors]) {
    I dots[Vectors][tile_groups];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < tile_groups; ++j) dots[i][j] = set1_i32(0);
    }
    for (int first = 0; first < tile_groups; first += groups_together) {
      for (std::uint32_t d = 0; d < dims; d += line_dims) {
        Int16Pairs keys[groups_together];
#pragma GCC unroll 4
        for (int j = 0; j < groups_together; ++j) {
          const std::uint16_t* at = k[first + j] + std::size_t{d} * group_tokens;
          keys[j] = load_int16_pairs(at);
          prefetch_for<Vectors, IsOneStream>(at);
        }
#pragma GCC unroll 6
        for (int i = 0; i < Vectors; ++i) {
          const Int16Pairs query = repeat_int16_pairs(q[i] + d);
#pragma GCC unroll 4
          for (int j = 0; j < groups_together; ++j)
            dots[i][first + j] = dot2(dots[i][first + j], query, keys[j]);
        }
      }
    }
    for (int i = 0; i < Vectors; ++i) sums[i] = to_float(sums_of_4(dots[i]));
  }

  /// Scores of the tokens of four groups, whose keys begin at `k` and have these scales.
  template <bool IsOneStream, int Vectors>
  HEADRACE_INLINE void scores_of_groups(const std::uint16_t* (&k)[tile_groups], F scales,
                                        std::uint32_t head_dim, const std::byte* const* queries,
                                        F (&sums)[Vectors]) {
    const std::uint16_t* q[Vectors];
    for (int i = 0; i < Vectors; ++i) q[i] = reinterpret_cast<const std::uint16_t*>(queries[i]);
    dot_products<IsOneStream>(k, head_dim < dot_dims ? head_dim : dot_dims, q, sums);
    for (std::uint32_t first = dot_dims; first < head_dim; first += dot_dims) {
      for (int i = 0; i < Vectors; ++i) q[i] += dot_dims;
      for (int j = 0; j < tile_groups; ++j) k[j] += std::size_t{dot_dims} * group_tokens;
      const std::uint32_t left = head_dim - first;
      F more[Vectors];
      dot_products<IsOneStream>(k, left < dot_dims ? left : dot_dims, q, more);
      for (int i = 0; i < Vectors; ++i) sums[i] = add(sums[i], more[i]);
    }
    for (int i = 0; i < Vectors; ++i) {
      float scale;
      std::memcpy(&scale, queries[i] + std::size_t{head_dim} * 2, sizeof scale);
      sums[i] = mul(sums[i], mul(scales, set1(scale)));
    }
  }

  HEADRACE_INLINE ByteRange keys_of(const PageHead& page, std::uint32_t group) {
    const std::size_t bytes = std::size_t{page.head_dim} * group_tokens * sizeof(std::uint16_t);
    return {page.k + group * bytes, bytes};
  }
  HEADRACE_INLINE const std::uint16_t* keys(const PageHead& page, std::uint32_t group) {
    return reinterpret_cast<const std::uint16_t*>(keys_of(page, group).first);
  }

  template <int Vectors, int Tiles, bool IsOneStream = true>
  HEADRACE_INLINE void scores(const FoldInput& in, std::uint32_t tile,
                              const std::byte* const* queries, float* out, std::size_t stride) {
    static_assert(Tiles == 1);
    const std::uint16_t* k[tile_groups];
    for (std::uint32_t j = 0; j < tile_groups; ++j) k[j] = keys(in.page, tile * tile_groups + j);
    const F scales = load_bf16(scales_of(in.page) + std::size_t{tile} * lanes);
    F sums[Vectors];
    scores_of_groups<IsOneStream>(k, scales, in.page.head_dim, queries, sums);
    for (int i = 0; i < Vectors; ++i)
      store(out + static_cast<std::size_t>(i) * stride + tile * lanes, sums[i]);
  }

  /// Scores of some groups, one after the other, in fours; behind the last one is room for a tile.
  template <int Vectors>
  HEADRACE_INLINE void group_scores(const FoldInput& in, TokenGroups chosen,
                                    const std::byte* const* queries, float* out,
                                    std::size_t stride) {
    const auto ask_for_keys = [&](std::uint32_t i) {
      if (i < chosen.count) prefetch(keys_of(in.page, chosen.group[i]));
    };
    for (std::uint32_t i = 0; i < groups_ahead; ++i) ask_for_keys(i);
    for (std::uint32_t first = 0; first < chosen.count; first += tile_groups) {
      const std::uint16_t* k[tile_groups];
      std::uint16_t scales[lanes];
      for (std::uint32_t j = 0; j < tile_groups; ++j) {
        ask_for_keys(first + groups_ahead + j);
        const std::uint32_t group =
            chosen.group[first + j < chosen.count ? first + j : chosen.count - 1];
        prefetch(values_of(in.page, group));
        k[j] = keys(in.page, group);
        std::memcpy(scales + std::size_t{j} * group_tokens,
                    scales_of(in.page) + std::size_t{group} * group_tokens,
                    group_tokens * sizeof *scales);
      }
      F sums[Vectors];
      scores_of_groups<false>(k, load_bf16(scales), in.page.head_dim, queries, sums);
      for (int i = 0; i < Vectors; ++i)
        store(out + static_cast<std::size_t>(i) * stride + first * group_tokens, sums[i]);
    }
  }
};

}  // namespace headrace::kernel::HEADRACE_ISA
