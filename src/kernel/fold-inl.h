// Attention as a fold over pages (invariant 1; the online softmax of Milakov & Gimelshein 2018,
// merged as in FlashAttention). The partial of a page depends on that page and the query vector
// alone:
//   s[t] = q . k[t]           over dim in order, 16 tokens in the lanes
//   m    = max s,  p = 2^(s - m),  l = sum p  (16 lanes, then across them)
//   o    = sum p[t] v[t]      over tokens in order, dim in the lanes
// and partials are merged in page order. So one row or many rows, one thread or many, give the same
// bits.
//
// Tokens that a vector may not read get the score -infinity, hence p = 0: adding 0 * v changes
// nothing. Pages are zeroed when opened, so what lies behind the newest token is finite.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// One element type of K and V: f16 or f32.
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
static void store_kv_as(const float* k, const float* v, std::uint32_t token, std::uint32_t head_dim,
                        std::byte* page_k, std::byte* page_v) {
  using Raw = typename Element<Type>::Raw;
  Raw* k_column = reinterpret_cast<Raw*>(page_k) + std::size_t{token / lanes} * head_dim * lanes +
                  token % lanes;
  Raw* v_row = reinterpret_cast<Raw*>(page_v) + std::size_t{token} * head_dim;
  HEADRACE_FOR_LANES(d, head_dim) {
    Raw column[lanes];
    Element<Type>::write(column, load(k + d));
    for (std::uint32_t i = 0; i < lanes; ++i) k_column[std::size_t{d + i} * lanes] = column[i];
    Element<Type>::write(v_row + d, load(v + d));
  }
}

static void store_kv(const float* k, const float* v, std::uint32_t token, std::uint32_t head_dim,
                     KvType type, std::byte* page_k, std::byte* page_v) {
  if (type == KvType::f16) return store_kv_as<KvType::f16>(k, v, token, head_dim, page_k, page_v);
  store_kv_as<KvType::f32>(k, v, token, head_dim, page_k, page_v);
}

/// Scores of one tile of 16 tokens for `Vectors` queries.
template <KvType Type, int Vectors>
HEADRACE_INLINE void score_tile(const FoldInput& in, std::uint32_t tile,
                                const float* const* queries, float* scores, std::size_t stride) {
  F sums[Vectors];
  for (int i = 0; i < Vectors; ++i) sums[i] = zero();
  const std::size_t start = std::size_t{tile} * in.head_dim * lanes;
  for (std::uint32_t d = 0; d < in.head_dim; ++d) {
    const F k = Element<Type>::read(in.k, start + std::size_t{d} * lanes);
#pragma GCC unroll 12
    for (int i = 0; i < Vectors; ++i) sums[i] = fma(set1(queries[i][d]), k, sums[i]);
  }
  for (int i = 0; i < Vectors; ++i)
    store(scores + static_cast<std::size_t>(i) * stride + tile * lanes, sums[i]);
}

/// Weighted values of `Vectors` queries for 16 * Parts dims from `d` on, tokens 0..count-1.
template <KvType Type, int Vectors, int Parts>
HEADRACE_INLINE void value_sums(const FoldInput& in, std::uint32_t d, std::uint32_t count,
                                const float* weights, std::size_t stride, float* const* out) {
  F sums[Vectors][Parts];
  for (int i = 0; i < Vectors; ++i) {
    for (int j = 0; j < Parts; ++j) sums[i][j] = zero();
  }
  for (std::uint32_t t = 0; t < count; ++t) {
    F v[Parts];
#pragma GCC unroll 4
    for (int j = 0; j < Parts; ++j) {
      v[j] = Element<Type>::read(
          in.v, std::size_t{t} * in.head_dim + d + static_cast<std::size_t>(j) * lanes);
    }
#pragma GCC unroll 6
    for (int i = 0; i < Vectors; ++i) {
      const F p = set1(weights[static_cast<std::size_t>(i) * stride + t]);
#pragma GCC unroll 4
      for (int j = 0; j < Parts; ++j) sums[i][j] = fma(p, v[j], sums[i][j]);
    }
  }
  for (int i = 0; i < Vectors; ++i) {
    for (int j = 0; j < Parts; ++j)
      store(out[i] + d + static_cast<std::size_t>(j) * lanes, sums[i][j]);
  }
}

/// Softmax weights of one vector in place; maximum and sum go to its state.
HEADRACE_INLINE void softmax_row(float* scores, std::uint32_t visible, std::uint32_t count,
                                 float* state) {
  for (std::uint32_t t = visible / lanes * lanes; t < count; t += lanes) {
    const std::uint32_t keep = visible > t ? visible - t : 0;
    store(scores + t, keep_first(load(scores + t), keep, -__builtin_inff()));
  }
  F largest = load(scores);
  for (std::uint32_t t = lanes; t < count; t += lanes) largest = max(largest, load(scores + t));
  const float maximum = reduce_max(largest);
  F sum = zero();
  for (std::uint32_t t = 0; t < count; t += lanes) {
    const F p = exp2_lanes(sub(load(scores + t), set1(maximum)));
    store(scores + t, p);
    sum = add(sum, p);
  }
  state[0] = maximum;
  state[1] = reduce_add(sum);
}

/// Calls f.template operator()<N>() for a runtime n in 1..Max.
template <int Max, typename Callable>
HEADRACE_INLINE void with_count(std::uint32_t n, Callable f) {
  if constexpr (Max > 1) {
    if (n < static_cast<std::uint32_t>(Max)) return with_count<Max - 1>(n, f);
  }
  f.template operator()<Max>();
}

#if defined(HEADRACE_ISA_AVX512)
inline constexpr int score_vectors = 12;  // one key and 12 sums in 32 registers
inline constexpr int value_vectors = 6;   // 4 values and 24 sums
#else
inline constexpr int score_vectors = 4;
inline constexpr int value_vectors = 2;
#endif

template <KvType Type>
static void fold_page_as(const FoldInput& in, float* scratch, float* states) {
  std::uint32_t longest = 0;
  for (std::uint32_t i = 0; i < in.vectors; ++i)
    longest = in.visible[i] > longest ? in.visible[i] : longest;
  const std::uint32_t tiles = (longest + lanes - 1) / lanes;
  const std::uint32_t count = tiles * lanes;
  const std::size_t state_stride = fold_state_floats(in.head_dim);

  for (std::uint32_t first = 0; first < in.vectors; first += score_vectors) {
    with_count<score_vectors>(in.vectors - first, [&]<int Vectors>() {
      for (std::uint32_t tile = 0; tile < tiles; ++tile) {
        score_tile<Type, Vectors>(in, tile, in.queries + first,
                                  scratch + std::size_t{first} * count, count);
      }
    });
  }
  for (std::uint32_t i = 0; i < in.vectors; ++i) {
    softmax_row(scratch + std::size_t{i} * count, in.visible[i], count, states + i * state_stride);
  }
  for (std::uint32_t first = 0; first < in.vectors; first += value_vectors) {
    with_count<value_vectors>(in.vectors - first, [&]<int Vectors>() {
      float* out[Vectors];
      for (int i = 0; i < Vectors; ++i)
        out[i] = states + (first + static_cast<std::uint32_t>(i)) * state_stride + lanes;
      const float* weights = scratch + std::size_t{first} * count;
      std::uint32_t d = 0;
      for (; d + 4 * lanes <= in.head_dim; d += 4 * lanes)
        value_sums<Type, Vectors, 4>(in, d, count, weights, count, out);
      for (; d < in.head_dim; d += lanes)
        value_sums<Type, Vectors, 1>(in, d, count, weights, count, out);
    });
  }
}

static void fold_page(const FoldInput& in, float* scratch, float* states) {
  if (in.type == KvType::f16) return fold_page_as<KvType::f16>(in, scratch, states);
  fold_page_as<KvType::f32>(in, scratch, states);
}

static void fold_merge(float* state, const float* partial, std::uint32_t head_dim) {
  const float maximum = state[0] > partial[0] ? state[0] : partial[0];
  const float keep = exp2_one(state[0] - maximum);
  const float take = exp2_one(partial[0] - maximum);
  state[0] = maximum;
  state[1] = state[1] * keep + partial[1] * take;
  float* out = state + lanes;
  const float* in = partial + lanes;
  HEADRACE_FOR_LANES(d, head_dim) {
    store(out + d, fma(load(in + d), set1(take), mul(load(out + d), set1(keep))));
  }
}

static void fold_finish(const float* state, std::uint32_t head_dim, float* out) {
  const F inverse = set1(1.0F / state[1]);
  HEADRACE_FOR_LANES(d, head_dim) store(out + d, mul(load(state + lanes + d), inverse));
}

}  // namespace headrace::kernel::HEADRACE_ISA
