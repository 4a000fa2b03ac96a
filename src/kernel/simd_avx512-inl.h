// AVX-512 (F, BW, DQ, VL, VNNI; with HEADRACE_ISA_BF16 also BF16). Included by simd.h only.
#pragma once

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};

HEADRACE_INLINE F zero() { return {_mm512_setzero_ps()}; }
HEADRACE_INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
HEADRACE_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
HEADRACE_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
HEADRACE_INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
HEADRACE_INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
HEADRACE_INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
HEADRACE_INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
HEADRACE_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HEADRACE_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
HEADRACE_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
HEADRACE_INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
HEADRACE_INLINE F round_nearest(F a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADRACE_INLINE F zero_where_below(F x, float bound, F value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_GE_OQ), value.v)};
}
/// value * 2^whole, whole integral in [-127, 127]; results below the normal range may be zero.
HEADRACE_INLINE F scale_by_power(F value, F whole) { return {_mm512_scalef_ps(value.v, whole.v)}; }
/// The first `count` lanes of `first`, the others of `rest`.
HEADRACE_INLINE F select_first(std::uint32_t count, F first, F rest) {
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << count) - 1U);
  return {_mm512_mask_mov_ps(rest.v, mask, first.v)};
}

/// Sum of the 16 lanes: halves, quarters, eighths, in that order.
HEADRACE_INLINE float reduce_add(F x) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 e = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(e, _mm_movehdup_ps(e)));
}
/// out[i] = (x[4i] + x[4i + 1]) + (x[4i + 2] + x[4i + 3])
HEADRACE_INLINE void store_sums_of_4(float* out, F x) {
  const __m512 twos = _mm512_add_ps(x.v, _mm512_permute_ps(x.v, 0xB1));
  const __m512 fours = _mm512_add_ps(twos, _mm512_permute_ps(twos, 0x4E));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, fours)));
}
HEADRACE_INLINE float reduce_max(F x) { return _mm512_reduce_max_ps(x.v); }

HEADRACE_INLINE F load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HEADRACE_INLINE void store_f16(std::uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/// 16 pairs of bf16, the first of a pair in the lower half of a word.
struct Pairs {
  __m512i v;
};
HEADRACE_INLINE Pairs load_pairs(const std::uint16_t* p) { return {_mm512_loadu_si512(p)}; }
HEADRACE_INLINE Pairs set1_pair(const std::uint16_t* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, 4);
  return {_mm512_set1_epi32(pair)};
}
#if defined(HEADRACE_ISA_BF16)
HEADRACE_INLINE __m512bh as_bf16(__m512i v) {
  __m512bh result;
  std::memcpy(&result, &v, sizeof v);
  return result;
}
/// Rounds to nearest, ties to even; magnitudes below 2^-126 become 0.
HEADRACE_INLINE void store_bf16(std::uint16_t* p, F x) {
  const __m256bh halves = _mm512_cvtneps_pbh(x.v);
  std::memcpy(p, &halves, sizeof halves);
}
/// acc += a[0] * b[0] + a[1] * b[1], the second product first.
HEADRACE_INLINE F dot2(F acc, Pairs a, Pairs b) {
  return {_mm512_dpbf16_ps(acc.v, as_bf16(a.v), as_bf16(b.v))};
}
#else
HEADRACE_INLINE void store_bf16(std::uint16_t* p, F x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
HEADRACE_INLINE F dot2(F acc, Pairs a, Pairs b) {
  const auto first = [](__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); };
  const auto second = [](__m512i v) {
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-0x10000)));
  };
  const __m512 sum = _mm512_fmadd_ps(second(a.v), second(b.v), acc.v);
  return {_mm512_fmadd_ps(first(a.v), first(b.v), sum)};
}
#endif

HEADRACE_INLINE F load_bf16(const std::uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}

/// 16 pairs of signed 16-bit integers.
struct Int16Pairs {
  __m512i v;
};
HEADRACE_INLINE Int16Pairs load_int16_pairs(const std::uint16_t* p) {
  return {_mm512_loadu_si512(p)};
}
/// The 4 pairs at `p`, four times.
HEADRACE_INLINE Int16Pairs repeat_int16_pairs(const std::uint16_t* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
/// acc += a[0] * b[0] + a[1] * b[1]. Exact.
HEADRACE_INLINE I dot2(I acc, Int16Pairs a, Int16Pairs b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));
  return acc;
}
/// Rounds to the nearest integer; |x| <= 32767.
HEADRACE_INLINE void store_int16(std::int16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x.v)));
}

/// 16 signed bytes.
HEADRACE_INLINE F load_int8(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

/// v[i] lane j <-> v[j] lane i. Words, then pairs, inside parts of four lanes; then the parts.
HEADRACE_INLINE void transpose(F (&v)[16]) {
  __m512 t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[i].v, v[i + 1].v));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(v[i].v, v[i + 1].v));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(v[i + 2].v, v[i + 3].v));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(v[i + 2].v, v[i + 3].v));
    t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  // t[4g + k] part p: lane 4p + k of rows 4g..4g+3.
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512 a = _mm512_shuffle_f32x4(t[k], t[4 + k], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(t[k], t[4 + k], 0xEE);
    const __m512 c = _mm512_shuffle_f32x4(t[8 + k], t[12 + k], 0x44);
    const __m512 d = _mm512_shuffle_f32x4(t[8 + k], t[12 + k], 0xEE);
    v[k].v = _mm512_shuffle_f32x4(a, c, 0x88);
    v[4 + k].v = _mm512_shuffle_f32x4(a, c, 0xDD);
    v[8 + k].v = _mm512_shuffle_f32x4(b, d, 0x88);
    v[12 + k].v = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

HEADRACE_INLINE I set1_i32(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
/// Lane 4i + j: the sum of lanes 4j to 4j + 3 of x[i].
HEADRACE_INLINE I sums_of_4(const I (&x)[4]) {
  const auto halves = [](__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i low = halves(x[0].v, x[1].v);
  const __m512i high = halves(x[2].v, x[3].v);
  // Lane 4j + i.
  const __m512i sums =
      _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_epi32(order, sums)};
}
HEADRACE_INLINE F to_float(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
/// Rounds to the nearest integer and narrows to 16 signed bytes; |x| <= 127. Returns their sum.
HEADRACE_INLINE std::int32_t store_int8(std::int8_t* p, F x) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

/// 64 unsigned weights: 4 for each of 16 columns.
struct W {
  __m512i v;
};
HEADRACE_INLINE W load_weights(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
/// 128 weights of 4 bits: the lower halves of 64 bytes, and the upper ones.
struct Nibbles {
  W low, high;
};
HEADRACE_INLINE Nibbles load_nibbles(const std::uint8_t* p) {
  const __m512i bytes = _mm512_loadu_si512(p);
  const __m512i nibble = _mm512_set1_epi8(15);
  return {{_mm512_and_si512(bytes, nibble)},
          {_mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble)}};
}
HEADRACE_INLINE W low_of(const Nibbles& x) { return x.low; }
HEADRACE_INLINE W high_of(const Nibbles& x) { return x.high; }
/// acc[column] += sum of 4 products of unsigned weights and the 4 signed activations at `a`. Exact.
template <bool Wide>
HEADRACE_INLINE I dot4(I acc, W w, const std::int8_t* a) {
  std::int32_t four;
  std::memcpy(&four, a, 4);
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
