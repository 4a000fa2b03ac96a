// AVX2 with FMA and F16C: two registers make the 16 lanes. Included by simd.h only.
#pragma once

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};

HEADRACE_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HEADRACE_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
HEADRACE_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HEADRACE_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
HEADRACE_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
HEADRACE_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
HEADRACE_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
HEADRACE_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
HEADRACE_INLINE F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
HEADRACE_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
HEADRACE_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
HEADRACE_INLINE F abs(F a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
HEADRACE_INLINE F round_nearest(F a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
HEADRACE_INLINE F zero_where_below(F x, float bound, F value) {
  const __m256 b = _mm256_set1_ps(bound);
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, b, _CMP_GE_OQ), value.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, b, _CMP_GE_OQ), value.hi)};
}
HEADRACE_INLINE F scale_by_power(F value, F whole) {
  const __m256i lo = _mm256_slli_epi32(_mm256_cvtps_epi32(whole.lo), 23);
  const __m256i hi = _mm256_slli_epi32(_mm256_cvtps_epi32(whole.hi), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value.lo), lo)),
          _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value.hi), hi))};
}
HEADRACE_INLINE F select_first(std::uint32_t count, F first, F rest) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i n = _mm256_set1_epi32(static_cast<int>(count));
  const __m256i lo = _mm256_cmpgt_epi32(n, lane);
  const __m256i hi = _mm256_cmpgt_epi32(n, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
  return {_mm256_blendv_ps(rest.lo, first.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(rest.hi, first.hi, _mm256_castsi256_ps(hi))};
}

HEADRACE_INLINE float reduce_add(F x) {
  const __m256 h = _mm256_add_ps(x.lo, x.hi);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 e = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(e, _mm_movehdup_ps(e)));
}
/// out[i] = (x[4i] + x[4i + 1]) + (x[4i + 2] + x[4i + 3])
HEADRACE_INLINE void store_sums_of_4(float* out, F x) {
  const __m256 twos = _mm256_hadd_ps(x.lo, x.hi);
  const __m256 fours = _mm256_hadd_ps(twos, twos);
  _mm_storeu_ps(out,
                _mm_unpacklo_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}
HEADRACE_INLINE float reduce_max(F x) {
  const __m256 h = _mm256_max_ps(x.lo, x.hi);
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 e = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(e, _mm_movehdup_ps(e)));
}

HEADRACE_INLINE F load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
HEADRACE_INLINE void store_f16(std::uint16_t* p, F x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, mode));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, mode));
}

/// Pairs of bf16 as two vectors of f32: the first of each pair, and the second.
struct Pairs {
  F first, second;
};
HEADRACE_INLINE Pairs split_pairs(__m256i lo, __m256i hi) {
  const auto lower = [](__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); };
  const auto upper = [](__m256i v) {
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-0x10000)));
  };
  return {{lower(lo), lower(hi)}, {upper(lo), upper(hi)}};
}
HEADRACE_INLINE Pairs load_pairs(const std::uint16_t* p) {
  return split_pairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16)));
}
HEADRACE_INLINE Pairs set1_pair(const std::uint16_t* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, 4);
  const __m256i v = _mm256_set1_epi32(pair);
  return split_pairs(v, v);
}
HEADRACE_INLINE F dot2(F acc, Pairs a, Pairs b) {
  return fma(a.first, b.first, fma(a.second, b.second, acc));
}
HEADRACE_INLINE __m256i round_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  return _mm256_srli_epi32(rounded, 16);
}
HEADRACE_INLINE void store_bf16(std::uint16_t* p, F x) {
  const __m256i words = _mm256_packus_epi32(round_to_bf16(x.lo), round_to_bf16(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xD8));
}

HEADRACE_INLINE F load_bf16(const std::uint16_t* p) {
  const auto widen = [](const std::uint16_t* from) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  };
  return {widen(p), widen(p + 8)};
}

struct Int16Pairs {
  __m256i lo, hi;
};
HEADRACE_INLINE Int16Pairs load_int16_pairs(const std::uint16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16))};
}
HEADRACE_INLINE Int16Pairs repeat_int16_pairs(const std::uint16_t* p) {
  const __m256i pairs =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {pairs, pairs};
}
HEADRACE_INLINE I dot2(I acc, Int16Pairs a, Int16Pairs b) {
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
HEADRACE_INLINE void store_int16(std::int16_t* p, F x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xD8));
}

HEADRACE_INLINE F load_int8(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

/// Words, then pairs, inside parts of four lanes; then the parts.
HEADRACE_INLINE void transpose_8x8(__m256 (&v)[8]) {
  __m256 t[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[i], v[i + 1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(v[i], v[i + 1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(v[i + 2], v[i + 3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(v[i + 2], v[i + 3]));
    t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    t[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    t[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    t[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    v[k] = _mm256_permute2f128_ps(t[k], t[4 + k], 0x20);
    v[4 + k] = _mm256_permute2f128_ps(t[k], t[4 + k], 0x31);
  }
}
/// v[i] lane j <-> v[j] lane i, in quarters.
HEADRACE_INLINE void transpose(F (&v)[16]) {
  __m256 upper_left[8];
  __m256 upper_right[8];
  __m256 lower_left[8];
  __m256 lower_right[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    upper_left[i] = v[i].lo;
    upper_right[i] = v[i].hi;
    lower_left[i] = v[i + 8].lo;
    lower_right[i] = v[i + 8].hi;
  }
  transpose_8x8(upper_left);
  transpose_8x8(upper_right);
  transpose_8x8(lower_left);
  transpose_8x8(lower_right);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = {upper_left[i], lower_left[i]};
    v[i + 8] = {upper_right[i], lower_right[i]};
  }
}

HEADRACE_INLINE I set1_i32(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
HEADRACE_INLINE I sums_of_4(const I (&x)[4]) {
  const auto sums = [](const I& a, const I& b) {
    // Parts of lanes 0 and 2, then of 1 and 3: first of one operand, then of the other.
    const __m256i mixed =
        _mm256_hadd_epi32(_mm256_hadd_epi32(a.lo, a.hi), _mm256_hadd_epi32(b.lo, b.hi));
    return _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  };
  return {sums(x[0], x[1]), sums(x[2], x[3])};
}
HEADRACE_INLINE F to_float(I x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
HEADRACE_INLINE std::int32_t store_int8(std::int8_t* p, F x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

struct W {
  __m256i lo, hi;
};
HEADRACE_INLINE W load_weights(const std::uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
struct Nibbles {
  W low, high;
};
HEADRACE_INLINE Nibbles load_nibbles(const std::uint8_t* p) {
  const W bytes = load_weights(p);
  const __m256i nibble = _mm256_set1_epi8(15);
  const auto low = [&](__m256i x) { return _mm256_and_si256(x, nibble); };
  const auto high = [&](__m256i x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble); };
  return {{low(bytes.lo), low(bytes.hi)}, {high(bytes.lo), high(bytes.hi)}};
}
HEADRACE_INLINE W low_of(const Nibbles& x) { return x.low; }
HEADRACE_INLINE W high_of(const Nibbles& x) { return x.high; }
HEADRACE_INLINE __m256i dot4_half(__m256i acc, __m256i w, __m256i a) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
}
/// Products of bytes are added in pairs in 16 bits, which would saturate for weights above 128:
/// wide weights go through their two nibbles.
HEADRACE_INLINE __m256i dot4_half_wide(__m256i acc, __m256i w, __m256i a) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(w, nibble), a);
  const __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 4), nibble), a);
  return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(low, _mm256_set1_epi16(1)),
                                                _mm256_madd_epi16(high, _mm256_set1_epi16(16))));
}
template <bool Wide>
HEADRACE_INLINE I dot4(I acc, W w, const std::int8_t* a) {
  std::int32_t four;
  std::memcpy(&four, a, 4);
  const __m256i b = _mm256_set1_epi32(four);
  if constexpr (Wide) return {dot4_half_wide(acc.lo, w.lo, b), dot4_half_wide(acc.hi, w.hi, b)};
  return {dot4_half(acc.lo, w.lo, b), dot4_half(acc.hi, w.hi, b)};
}
