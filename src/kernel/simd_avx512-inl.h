// AVX-512 (F, BW, DQ, VL, VNNI). Included by simd.h only.
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
HEADRACE_INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
HEADRACE_INLINE F round_nearest(F a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADRACE_INLINE F zero_where_below(F x, float bound, F value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_GE_OQ), value.v)};
}
/// value * 2^whole, whole integral in [-127, 127]; results below the normal range may be zero.
HEADRACE_INLINE F scale_by_power(F value, F whole) { return {_mm512_scalef_ps(value.v, whole.v)}; }
/// Lanes from `count` on become `fill`.
HEADRACE_INLINE F keep_first(F x, std::uint32_t count, float fill) {
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << count) - 1U);
  return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), mask, x.v)};
}

HEADRACE_INLINE F load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HEADRACE_INLINE void store_f16(std::uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HEADRACE_INLINE I set1_i32(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
HEADRACE_INLINE F to_float(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
/// Rounds to the nearest integer and narrows to 16 signed bytes; |x| <= 127.
HEADRACE_INLINE void store_int8(std::int8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

/// 64 unsigned weights: 4 for each of 16 columns.
struct W {
  __m512i v;
};
HEADRACE_INLINE W load_weights(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
/// acc[column] += sum of 4 products of unsigned weights and the 4 signed activations at `a`. Exact.
template <bool Wide>
HEADRACE_INLINE I dot4(I acc, W w, const std::int8_t* a) {
  std::int32_t four;
  std::memcpy(&four, a, 4);
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
