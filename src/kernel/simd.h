// Sixteen lanes of f32 and i32, written once per instruction set. Included only by the *-inl.h
// kernels, inside the namespace HEADRACE_ISA, so that no two objects share a symbol with different
// instructions in it.
//
// Every operation is elementwise or a reduction in one fixed order, so a result never depends on
// the register width.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(HEADRACE_ISA_AVX512) || defined(HEADRACE_ISA_AVX2)
#include <immintrin.h>
#endif

#define HEADRACE_INLINE static inline __attribute__((always_inline))

namespace headrace::kernel::HEADRACE_ISA {

#if defined(HEADRACE_ISA_AVX512)
#include "kernel/simd_avx512-inl.h"
#elif defined(HEADRACE_ISA_AVX2)
#include "kernel/simd_avx2-inl.h"
#else
#include "kernel/simd_scalar-inl.h"
#endif

/// Sum of the 16 lanes: halves, quarters, eighths, in that order.
HEADRACE_INLINE float reduce_add(F x) {
  alignas(64) float v[16];
  store(v, x);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) v[i] += v[i + step];
  }
  return v[0];
}

HEADRACE_INLINE float reduce_max(F x) {
  alignas(64) float v[16];
  store(v, x);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) v[i] = v[i] > v[i + step] ? v[i] : v[i + step];
  }
  return v[0];
}

/// 2^x for x <= 127; 0 below -126 (and for -infinity). Relative error below 2e-7: the fraction in
/// [-1/2, 1/2] goes through a polynomial of degree 6 (Taylor of 2^f), the integer part into the
/// exponent.
HEADRACE_INLINE F exp2_lanes(F x) {
  const F clamped = max(x, set1(-127.0F));
  const F whole = round_nearest(clamped);
  const F f = sub(clamped, whole);
  F p = set1(1.5403530393381609e-4F);
  p = fma(p, f, set1(1.3333558146428443e-3F));
  p = fma(p, f, set1(9.6181291076284772e-3F));
  p = fma(p, f, set1(5.5504108664821580e-2F));
  p = fma(p, f, set1(2.4022650695910071e-1F));
  p = fma(p, f, set1(6.9314718055994531e-1F));
  p = fma(p, f, set1(1.0F));
  return zero_where_below(x, -126.0F, scale_by_power(p, whole));
}

HEADRACE_INLINE float exp2_one(float x) {
  alignas(64) float v[16];
  store(v, exp2_lanes(set1(x)));
  return v[0];
}

}  // namespace headrace::kernel::HEADRACE_ISA
