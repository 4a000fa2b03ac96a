// Pages of f16 and f32: products and sums in f32.
//   s[t] = fma(q[d], k[t][d], s[t]) over d in order;  o[d] = fma(p[t], v[t][d], o[d]) over t in
//   order
// Layout: K [tile][dim][16 tokens], V [token][dim].
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

template <KvType Type>
struct Element;
template <>
struct Element<KvType::f16> {
  using Raw = std::uint16_t;
  HEADRACE_INLINE F read(const std::byte* base, std::size_t index) {
    return load_f16(reinterpret_cast<const Raw*>(base) + index);
  }
  HEADRACE_INLINE void write(Raw* out, F x) { store_f16(out, x); }
};
template <>
struct Element<KvType::f32> {
  using Raw = float;
  HEADRACE_INLINE F read(const std::byte* base, std::size_t index) {
    return load(reinterpret_cast<const Raw*>(base) + index);
  }
  HEADRACE_INLINE void write(Raw* out, F x) { store(out, x); }
};

template <KvType Type>
struct FloatKv : SumTiles {
  using Raw = typename Element<Type>::Raw;
  using Weight = float;
  static constexpr bool odd_parts = true;

  static void store_row(const float* k, const float* v, std::uint32_t token, const PageHead& page) {
    const std::uint32_t head_dim = page.head_dim;
    Raw* k_column = reinterpret_cast<Raw*>(page.k) + std::size_t{token / lanes} * head_dim * lanes +
                    token % lanes;
    Raw* v_row = reinterpret_cast<Raw*>(page.v) + std::size_t{token} * head_dim;
    HEADRACE_FOR_LANES(d, head_dim) {
      Raw column[lanes];
      Element<Type>::write(column, load(k + d));
      for (std::uint32_t i = 0; i < lanes; ++i) k_column[std::size_t{d + i} * lanes] = column[i];
      Element<Type>::write(v_row + d, load(v + d));
    }
  }

  static void prepare(const float* query, float scale, std::uint32_t head_dim, std::byte* out) {
    auto* q = reinterpret_cast<float*>(out);
    HEADRACE_FOR_LANES(d, head_dim) store(q + d, mul(load(query + d), set1(scale)));
  }

  /// Weights overwrite the scores.
  static Weight* weights_of(float* scratch, std::size_t) { return scratch; }
  HEADRACE_INLINE void store_weights(Weight* out, F p) { store(out, p); }

  HEADRACE_INLINE std::size_t key_tile_bytes(std::uint32_t head_dim) {
    return std::size_t{head_dim} * lanes * sizeof(Raw);
  }
  /// Of a group of tokens.
  HEADRACE_INLINE ByteRange values_of(const PageHead& page, std::uint32_t group) {
    const std::size_t bytes = std::size_t{page.head_dim} * group_tokens * sizeof(Raw);
    return {page.v + group * bytes, bytes};
  }

  /// Scores of `Tiles` tiles for `Vectors` queries.
  template <int Vectors, int Tiles, bool IsOneStream = true>
  HEADRACE_INLINE void scores(const FoldInput& in, std::uint32_t tile,
                              const std::byte* const* queries, float* out, std::size_t stride) {
    const std::uint32_t head_dim = in.page.head_dim;
    F sums[Vectors][Tiles];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Tiles; ++j) sums[i][j] = zero();
    }
    const std::size_t start = std::size_t{tile} * head_dim * lanes;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      F k[Tiles];
#pragma GCC unroll 4
      for (int j = 0; j < Tiles; ++j) {
        const std::size_t at = start + (static_cast<std::size_t>(j) * head_dim + d) * lanes;
        k[j] = Element<Type>::read(in.page.k, at);
        prefetch_for<Vectors, IsOneStream>(in.page.k + at * sizeof(Raw));
      }
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        const F q = set1(reinterpret_cast<const float*>(queries[i])[d]);
#pragma GCC unroll 4
        for (int j = 0; j < Tiles; ++j) sums[i][j] = fma(q, k[j], sums[i][j]);
      }
    }
    store_scores<Vectors, Tiles>(sums, tile, out, stride);
  }

  /// Weighted values of `Vectors` queries for 16 * Parts dims from `d` on.
  template <int Vectors, int Parts>
  HEADRACE_INLINE void value_sums(const FoldInput& in, std::uint32_t d, FoldRange range,
                                  const Weight* weights, std::size_t stride, float* const* out) {
    F sums[Vectors][Parts];
    for (int i = 0; i < Vectors; ++i) {
      for (int j = 0; j < Parts; ++j) sums[i][j] = zero();
    }
    for (std::uint32_t t = range.first_tile * lanes; t < range.end_tile * lanes; ++t) {
      F v[Parts];
#pragma GCC unroll 4
      for (int j = 0; j < Parts; ++j) {
        const std::size_t at =
            std::size_t{t} * in.page.head_dim + d + static_cast<std::size_t>(j) * lanes;
        v[j] = Element<Type>::read(in.page.v, at);
        if (j % 2 == 0) prefetch_for<Vectors>(in.page.v + at * sizeof(Raw));
      }
#pragma GCC unroll 6
      for (int i = 0; i < Vectors; ++i) {
        const F p = set1(weights[static_cast<std::size_t>(i) * stride + t]);
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) sums[i][j] = fma(p, v[j], sums[i][j]);
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
    for (std::uint32_t group = 0; group < chosen.count; ++group) {
      const std::uint32_t first = chosen.group[group] * group_tokens;
      const Weight* const of_group = weights + std::size_t{group} * group_tokens;
      for (std::uint32_t t = first; t < first + group_tokens; ++t) {
        F v[Parts];
#pragma GCC unroll 4
        for (int j = 0; j < Parts; ++j) {
          v[j] = Element<Type>::read(in.page.v, std::size_t{t} * in.page.head_dim + d +
                                                    static_cast<std::size_t>(j) * lanes);
        }
#pragma GCC unroll 6
        for (int i = 0; i < Vectors; ++i) {
          const F p = set1(of_group[static_cast<std::size_t>(i) * stride + t - first]);
#pragma GCC unroll 4
          for (int j = 0; j < Parts; ++j) sums[i][j] = fma(p, v[j], sums[i][j]);
        }
      }
    }
    store_values<Vectors, Parts>(sums, d, out);
  }
};

}  // namespace headrace::kernel::HEADRACE_ISA
