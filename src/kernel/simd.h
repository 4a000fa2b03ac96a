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
#elif defined(HEADRACE_ISA_NEON)
#include <arm_neon.h>
#endif

#define HEADRACE_INLINE static inline __attribute__((always_inline))

/// A loop over whole vectors; widths are multiples of 16 (checked when the model is loaded).
#define HEADRACE_FOR_LANES(offset, width) \
  for (std::uint32_t offset = 0; offset < (width); offset += lanes)

namespace headrace::kernel::HEADRACE_ISA {

/// A bf16 is the upper half of an f32.
HEADRACE_INLINE float bf16_value(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
/// The least bf16 that is not below `x`, which is finite and not negative.
HEADRACE_INLINE std::uint16_t bf16_not_below(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<std::uint16_t>((bits + 0xFFFFU) >> 16);
}

#if defined(HEADRACE_ISA_AVX512)
#include "kernel/simd_avx512-inl.h"
#elif defined(HEADRACE_ISA_AVX2)
#include "kernel/simd_avx2-inl.h"
#elif defined(HEADRACE_ISA_NEON)
#include "kernel/simd_neon-inl.h"
#else
#include "kernel/simd_scalar-inl.h"
#endif

/// 2^x for x <= 127; 0 below -126 (and for -infinity). Relative error below 2e-7, and none at whole
/// numbers: the fraction in [-1/2, 1/2] goes through the polynomial of degree 5 with the least
/// relative error of those that are 1 at 0, the integer part into the exponent.
HEADRACE_INLINE F exp2_lanes(F x) {
  const F clamped = max(x, set1(-127.0F));
  const F whole = round_nearest(clamped);
  const F f = sub(clamped, whole);
  F p = set1(1.326472731307149e-3F);
  p = fma(p, f, set1(9.671512991189957e-3F));
  p = fma(p, f, set1(5.550733581185341e-2F));
  p = fma(p, f, set1(2.4022242426872253e-1F));
  p = fma(p, f, set1(6.931470036506653e-1F));
  p = fma(p, f, set1(1.0F));
  return zero_where_below(x, -126.0F, scale_by_power(p, whole));
}

HEADRACE_INLINE float exp2_one(float x) {
  alignas(64) float v[16];
  store(v, exp2_lanes(set1(x)));
  return v[0];
}

}  // namespace headrace::kernel::HEADRACE_ISA
