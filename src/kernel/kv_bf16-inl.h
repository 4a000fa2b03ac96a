// Pages of bf16: queries and softmax weights are rounded to bf16 too, so that the machine's dot
// product of two bf16 pairs (AVX512_BF16) does the work; sums are in f32.
//   s[t] = dot2(s[t], q[2i, 2i+1], k[t][2i, 2i+1]) over i in order
//   o[d] = dot2(o[d], p[2j, 2j+1], v[2j, 2j+1][d]) over j in order
// Layout: K [tile][dim / 2][16 tokens][2], V [token / 2][dim][2].
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

struct Bf16Kv : SumTiles {
  using Weight = std::uint16_t;
  static constexpr bool odd_parts = true;

  static void store_row(const float* k, const float* v, std::uint32_t token, const PageHead& page) {
    const std::uint32_t head_dim = page.head_dim;
    auto* k_column = reinterpret_cast<std::uint16_t*>(page.k) +
                     std::size_t{token / lanes} * head_dim * lanes + std::size_t{token % lanes} * 2;
    HEADRACE_FOR_LANES(d, head_dim) {
      std::uint16_t values[lanes];
      store_bf16(values, load(k + d));
      for (std::uint32_t i = 0; i < lanes; i += 2) {
        std::memcpy(k_column + std::size_t{d + i} * lanes, values + i, 2 * sizeof *values);
      }
    }
    store_value(v, token, page);
  }
  static void store_value(const float* v, std::uint32_t token, const PageHead& page) {
    auto* row = reinterpret_cast<std::uint16_t*>(page.v) +
                std::size_t{token / 2} * page.head_dim * 2 + token % 2;
    HEADRACE_FOR_LANES(d, page.head_dim) {
      std::uint16_t values[lanes];
      store_bf16(values, load(v + d));
      for (std::uint32_t i = 0; i < lanes; ++i) row[std::size_t{d + i} * 2] = values[i];
    }
  }

  static void prepare(const float* query, float scale, std::uint32_t head_dim, std::byte* out) {
    auto* q = reinterpret_cast<std::uint16_t*>(out);
    HEADRACE_FOR_LANES(d, head_dim) store_bf16(q + d, mul(load(query + d), set1(scale)));
  }

  static Weight* weights_of(float* scratch, std::size_t scores) {
    return reinterpret_cast<Weight*>(scratch + scores);
  }
  HEADRACE_INLINE void store_weights(Weight* out, F p) { store_bf16(out, p); }

  HEADRACE_INLINE std::size_t key_tile_bytes(std::uint32_t head_dim) {
    return std::size_t{head_dim} * lanes * sizeof(std::uint16_t);
  }
  /// Of a group of tokens.
  HEADRACE_INLINE ByteRange values_of(const PageHead& page, std::uint32_t group) {
    const std::size_t bytes = std::size_t{page.head_dim} * group_tokens * sizeof(std::uint16_t);
    return {page.v + group * bytes, bytes};
  }

  template <int Vectors, int Tiles, bool IsOneStream = true>
  HEADRACE_INLINE void scores(const FoldInput& in, std::uint32_t tile,
                              const std::byte* const* queries, float* out, std::size_t stride) {
    const std::uint32_t head_dim = in.page.head_dim;
    F sums[Vectors][Tiles];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Tiles; ++j) sums[i][j] = zero();
    }
    const auto* k =
        reinterpret_cast<const std::uint16_t*>(in.page.k) + std::size_t{tile} * head_dim * lanes;
    for (std::uint32_t d = 0; d < head_dim; d += 2) {
      Pairs keys[Tiles];
#pragma GCC unroll 4
      for (int j = 0; j < Tiles; ++j) {
        const std::uint16_t* at = k + (static_cast<std::size_t>(j) * head_dim + d) * lanes;
        keys[j] = load_pairs(at);
        prefetch_for<Vectors, IsOneStream>(at);
      }
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        const Pairs q = set1_pair(reinterpret_cast<const std::uint16_t*>(queries[i]) + d);
#pragma GCC unroll 4
        for (int j = 0; j < Tiles; ++j) sums[i][j] = dot2(sums[i][j], q, keys[j]);
      }
    }
    store_scores<Vectors, Tiles>(sums, tile, out, stride);
  }

  template <int Vectors, int Parts>
  HEADRACE_INLINE void value_sums(const FoldInput& in, std::uint32_t d, FoldRange range,
                                  const Weight* weights, std::size_t stride, float* const* out) {
    F sums[Vectors][Parts];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Parts; ++j) sums[i][j] = zero();
    }
    const auto* v = reinterpret_cast<const std::uint16_t*>(in.page.v);
    for (std::uint32_t t = range.first_tile * lanes; t < range.end_tile * lanes; t += 2) {
      Pairs values[Parts];
#pragma GCC unroll 4
      for (int j = 0; j < Parts; ++j) {
        const std::uint16_t* at =
            v + std::size_t{t} * in.page.head_dim + (d + static_cast<std::size_t>(j) * lanes) * 2;
        values[j] = load_pairs(at);
        prefetch_for<Vectors>(at);
      }
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        const Pairs p = set1_pair(weights + static_cast<std::size_t>(i) * stride + t);
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) sums[i][j] = dot2(sums[i][j], p, values[j]);
      }
    }
    store_values<Vectors, Parts>(sums, d, out);
  }

  /// The same over some groups of tokens.
  template <int Vectors, int Parts>
  HEADRACE_INLINE void group_sums(const FoldInput& in, std::uint32_t d, TokenGroups chosen,
                                  const Weight* weights, std::size_t stride, float* const* out) {
    F sums[Vectors][Parts];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Parts; ++j) sums[i][j] = zero();
    }
    const auto* v = reinterpret_cast<const std::uint16_t*>(in.page.v);
    for (std::uint32_t group = 0; group < chosen.count; ++group) {
      const std::uint32_t first = chosen.group[group] * group_tokens;
      const Weight* const of_group = weights + std::size_t{group} * group_tokens;
      for (std::uint32_t t = first; t < first + group_tokens; t += 2) {
        Pairs values[Parts];
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) {
          values[j] = load_pairs(v + std::size_t{t} * in.page.head_dim +
                                 (d + static_cast<std::size_t>(j) * lanes) * 2);
        }
#pragma GCC unroll 6
        for (int i = 0; i < Vectors; ++i) {
          const Pairs p = set1_pair(of_group + static_cast<std::size_t>(i) * stride + t - first);
#pragma GCC unroll 4
          for (int j = 0; j < Parts; ++j) sums[i][j] = dot2(sums[i][j], p, values[j]);
        }
      }
    }
    store_values<Vectors, Parts>(sums, d, out);
  }
};

}  // namespace headrace::kernel::HEADRACE_ISA
