// Attention as a fold over pages (invariant 1; the online softmax of Milakov & Gimelshein 2018,
// merged as in FlashAttention). The partial of a page depends on that page and the query vector
// alone:
//   s[t] = q . k[t]           over dim in order, 16 tokens in the lanes
//   m    = max s,  p = 2^(s - m),  l = sum p  (16 lanes, then across them)
//          and p times the factor of its group, where groups have them
//   o    = sum p[t] v[t]      over tokens in order, dim in the lanes
// and partials are merged in page order. So one row or many rows, one thread or many, give the same
// bits. What a product means depends on the type of the page: kv_float-inl.h, kv_bf16-inl.h,
// kv_i16-inl.h and kv_q8-inl.h.
//
// Tokens that a vector may not read get the score -infinity, hence p = 0: adding 0 * v changes
// nothing. Pages are zeroed when opened, so what lies behind the newest token is finite.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// Calls f.template operator()<N>() for a runtime n in 1..Max.
template <int Max, typename Callable>
HEADRACE_INLINE void with_count(std::uint32_t n, Callable f) {
  if constexpr (Max > 1) {
    if (n < static_cast<std::uint32_t>(Max)) return with_count<Max - 1>(n, f);
  }
  f.template operator()<Max>();
}

/// Calls f.template operator()<Kv>() with the numeric definition of a page type.
template <typename Callable>
HEADRACE_INLINE void with_type(KvType type, Callable f) {
  switch (type) {
    case KvType::f32:
      return f.template operator()<FloatKv<KvType::f32>>();
    case KvType::f16:
      return f.template operator()<FloatKv<KvType::f16>>();
    case KvType::bf16:
      return f.template operator()<Bf16Kv>();
    case KvType::q8:
      return f.template operator()<Q8Kv>();
    case KvType::i16:
      return f.template operator()<I16Kv>();
  }
}

static void store_kv(const float* k, const float* v, std::size_t stride, std::uint32_t token,
                     std::uint32_t count, const PageHead& page) {
  with_type(page.type, [&]<typename Kv>() {
    for (std::uint32_t i = 0; i < count; ++i)
      Kv::store_row(k + i * stride, v + i * stride, token + i, page);
  });
}

static void prepare_query(const float* query, float scale, std::uint32_t head_dim, KvType type,
                          std::byte* out) {
  with_type(type, [&]<typename Kv>() { Kv::prepare(query, scale, head_dim, out); });
}

/// Softmax weights of one vector from its scores, times the factors if there are any; maximum and
/// sum go to its state.
template <typename Kv>
HEADRACE_INLINE void softmax_row(float* scores, typename Kv::Weight* weights, FoldRange range,
                                 std::uint32_t begin, std::uint32_t end, const float* factors,
                                 float* state) {
  const F minus_infinity = set1(-__builtin_inff());
  F largest = minus_infinity;
  for (std::uint32_t tile = range.first_tile; tile < range.end_tile; ++tile) {
    const std::uint32_t t = tile * lanes;
    F s = load(scores + t);
    if (end < t + lanes || begin > t) {
      if (end < t + lanes) s = select_first(end > t ? end - t : 0, s, minus_infinity);
      if (begin > t) s = select_first(begin - t, minus_infinity, s);
      store(scores + t, s);
    }
    largest = max(largest, s);
  }
  const F maximum = set1(reduce_max(largest));
  F sum = zero();
  for (std::uint32_t tile = range.first_tile; tile < range.end_tile; ++tile) {
    const std::uint32_t t = tile * lanes;
    F p = exp2_lanes(sub(load(scores + t), maximum));
    if (factors != nullptr) p = mul(p, load(factors + t));
    Kv::store_weights(weights + t, p);
    sum = add(sum, p);
  }
  alignas(64) float v[lanes];
  store(v, maximum);
  state[0] = v[0];
  state[1] = reduce_add(sum);
}

template <typename Kv>
static void fold_page_as(const FoldInput& in, float* scratch, float* states) {
  std::uint32_t begin = in.begin[0];
  std::uint32_t end = in.end[0];
  for (std::uint32_t i = 1; i < in.vectors; ++i) {
    begin = in.begin[i] < begin ? in.begin[i] : begin;
    end = in.end[i] > end ? in.end[i] : end;
  }
  const FoldRange range = {begin / lanes, (end + lanes - 1) / lanes};
  const std::uint32_t head_dim = in.page.head_dim;
  const std::size_t stride = in.page.tokens;
  const std::size_t state_stride = fold_state_floats(head_dim);
  float* const scores = scratch;
  auto* const weights = Kv::weights_of(scratch, fold_vectors_max * stride);

  for (std::uint32_t first = 0; first < in.vectors; first += Kv::score_vectors) {
    with_count<Kv::score_vectors>(in.vectors - first, [&]<int Vectors>() {
      float* out = scores + first * stride;
      std::uint32_t tile = range.first_tile;
      for (; tile + Kv::score_tiles <= range.end_tile; tile += Kv::score_tiles)
        Kv::template scores<Vectors, Kv::score_tiles>(in, tile, in.queries + first, out, stride);
      for (; tile < range.end_tile; ++tile)
        Kv::template scores<Vectors, 1>(in, tile, in.queries + first, out, stride);
    });
  }
  for (std::uint32_t i = 0; i < in.vectors; ++i) {
    softmax_row<Kv>(scores + i * stride, weights + i * stride, range, in.begin[i], in.end[i],
                    nullptr, states + i * state_stride);
  }
  for (std::uint32_t first = 0; first < in.vectors; first += Kv::value_vectors) {
    with_count<Kv::value_vectors>(in.vectors - first, [&]<int Vectors>() {
      float* out[Vectors];
      for (int i = 0; i < Vectors; ++i)
        out[i] = states + (first + static_cast<std::uint32_t>(i)) * state_stride + lanes;
      const auto* from = weights + first * stride;
      std::uint32_t d = 0;
      for (; d + 4 * lanes <= head_dim; d += 4 * lanes)
        Kv::template value_sums<Vectors, 4>(in, d, range, from, stride, out);
      for (; d + 2 * lanes <= head_dim; d += 2 * lanes)
        Kv::template value_sums<Vectors, 2>(in, d, range, from, stride, out);
      if constexpr (Kv::odd_parts) {
        if (d < head_dim) Kv::template value_sums<Vectors, 1>(in, d, range, from, stride, out);
      }
    });
  }
}

/// Neighbouring tiles that hold chosen groups.
struct ChosenTiles {
  FoldRange runs[tokens_per_block_max / lanes / 2];
  std::uint32_t count = 0;

  explicit ChosenTiles(TokenGroups chosen) {
    for (std::uint32_t i = 0; i < chosen.count; ++i) {
      const std::uint32_t tile = chosen.group[i] * group_tokens / lanes;
      if (count > 0 && tile <= runs[count - 1].end_tile) {
        runs[count - 1].end_tile = tile + 1;
      } else {
        runs[count++] = {tile, tile + 1};
      }
    }
  }
};

template <typename Kv>
HEADRACE_INLINE ByteRange keys_of(const PageHead& page, FoldRange tiles) {
  const std::size_t tile_bytes = Kv::key_tile_bytes(page.head_dim);
  return {page.k + tiles.first_tile * tile_bytes, (tiles.end_tile - tiles.first_tile) * tile_bytes};
}

/// Scores of some groups, one after the other, where a group shares its cache lines with its tile.
template <typename Kv, int Vectors>
HEADRACE_INLINE void group_scores(const FoldInput& in, TokenGroups chosen,
                                  const std::byte* const* queries, float* out, std::size_t stride) {
  constexpr bool is_one_stream = false;
  const ChosenTiles tiles(chosen);
  std::uint32_t asked_for = 0;  // groups, of their values
  for (std::uint32_t run = 0; run < tiles.count; ++run) {
    if (run + 1 < tiles.count) prefetch(keys_of<Kv>(in.page, tiles.runs[run + 1]));
    std::uint32_t tile = tiles.runs[run].first_tile;
    const std::uint32_t end = tiles.runs[run].end_tile;
    for (; tile + Kv::score_tiles <= end; tile += Kv::score_tiles)
      Kv::template scores<Vectors, Kv::score_tiles, is_one_stream>(in, tile, queries, out, stride);
    for (; tile < end; ++tile)
      Kv::template scores<Vectors, 1, is_one_stream>(in, tile, queries, out, stride);
    for (; asked_for < chosen.count && chosen.group[asked_for] * group_tokens < end * lanes;
         ++asked_for) {
      prefetch(Kv::values_of(in.page, chosen.group[asked_for]));
    }
  }
  for (int i = 0; i < Vectors; ++i) {
    float* const scores = out + static_cast<std::size_t>(i) * stride;
    for (std::uint32_t j = 0; j < chosen.count; ++j) {
      std::memmove(scores + j * group_tokens, scores + chosen.group[j] * group_tokens,
                   group_tokens * sizeof(float));
    }
  }
}

/// How often each token's weight counts, to the end of the last tile. Null: once.
struct TokenFactors {
  alignas(64) float of_tokens[tokens_per_block_max];
  const float* first = nullptr;

  TokenFactors(const float* of_groups, std::uint32_t count) {
    if (of_groups == nullptr) return;
    first = of_tokens;
    std::uint32_t t = 0;
    for (; t < count * group_tokens; ++t) of_tokens[t] = of_groups[t / group_tokens];
    for (; t % lanes != 0; ++t) of_tokens[t] = 1.0F;
  }
};

/// Scores and weights are those of the chosen tokens, one after the other. All of a page are in the
/// order, and so in the lanes, in which fold_page() has them.
template <typename Kv>
static void fold_groups_as(const FoldInput& in, TokenGroups chosen, float* scratch, float* states) {
  const std::uint32_t head_dim = in.page.head_dim;
  const std::size_t stride = in.page.tokens;
  const std::size_t state_stride = fold_state_floats(head_dim);
  const std::uint32_t tokens = chosen.count * group_tokens;
  float* const scores = scratch;
  auto* const weights = Kv::weights_of(scratch, fold_vectors_max * stride);
  for (std::uint32_t first = 0; first < in.vectors; first += Kv::score_vectors) {
    with_count<Kv::score_vectors>(in.vectors - first, [&]<int Vectors>() {
      float* out = scores + first * stride;
      if constexpr (Kv::keeps_groups_together) {
        Kv::template group_scores<Vectors>(in, chosen, in.queries + first, out, stride);
      } else {
        group_scores<Kv, Vectors>(in, chosen, in.queries + first, out, stride);
      }
    });
  }
  const TokenFactors factors(in.group_factors, chosen.count);
  for (std::uint32_t i = 0; i < in.vectors; ++i) {
    softmax_row<Kv>(scores + i * stride, weights + i * stride, {0, (tokens + lanes - 1) / lanes}, 0,
                    tokens, factors.first, states + i * state_stride);
  }
  for (std::uint32_t first = 0; first < in.vectors; first += Kv::value_vectors) {
    with_count<Kv::value_vectors>(in.vectors - first, [&]<int Vectors>() {
      float* out[Vectors];
      for (int i = 0; i < Vectors; ++i)
        out[i] = states + (first + static_cast<std::uint32_t>(i)) * state_stride + lanes;
      const auto* from = weights + first * stride;
      std::uint32_t d = 0;
      for (; d + 4 * lanes <= head_dim; d += 4 * lanes)
        Kv::template group_sums<Vectors, 4>(in, d, chosen, from, stride, out);
      for (; d + 2 * lanes <= head_dim; d += 2 * lanes)
        Kv::template group_sums<Vectors, 2>(in, d, chosen, from, stride, out);
      if constexpr (Kv::odd_parts) {
        if (d < head_dim) Kv::template group_sums<Vectors, 1>(in, d, chosen, from, stride, out);
      }
    });
  }
}

static void fold_groups(const FoldInput& in, const std::uint16_t* group, std::uint32_t count,
                        float* scratch, float* states) {
  with_type(in.page.type,
            [&]<typename Kv>() { fold_groups_as<Kv>(in, {group, count}, scratch, states); });
}

static void ask_for_groups(const PageHead& page, const std::uint16_t* group, std::uint32_t count) {
  with_type(page.type, [&]<typename Kv>() {
    if constexpr (Kv::keeps_groups_together) {
      for (std::uint32_t i = 0; i < count && i < Kv::groups_ahead; ++i)
        prefetch(Kv::keys_of(page, group[i]));
    }
  });
}

static void fold_page(const FoldInput& in, float* scratch, float* states) {
  with_type(in.page.type, [&]<typename Kv>() { fold_page_as<Kv>(in, scratch, states); });
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
