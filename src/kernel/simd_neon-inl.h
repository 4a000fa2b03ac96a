// NEON of AArch64 (ARMv8.0, no extensions): four registers make the 16 lanes. Included by simd.h
// only.
#pragma once

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};

#define HEADRACE_PARTS(expression)                   \
  for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
  return r

HEADRACE_INLINE F set1(float x) {
  F r;
  HEADRACE_PARTS(vdupq_n_f32(x));
}
HEADRACE_INLINE F zero() { return set1(0.0F); }
HEADRACE_INLINE F load(const float* p) {
  F r;
  HEADRACE_PARTS(vld1q_f32(p + 4 * i));
}
HEADRACE_INLINE void store(float* p, F x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
HEADRACE_INLINE F add(F a, F b) {
  F r;
  HEADRACE_PARTS(vaddq_f32(a.v[i], b.v[i]));
}
HEADRACE_INLINE F sub(F a, F b) {
  F r;
  HEADRACE_PARTS(vsubq_f32(a.v[i], b.v[i]));
}
HEADRACE_INLINE F mul(F a, F b) {
  F r;
  HEADRACE_PARTS(vmulq_f32(a.v[i], b.v[i]));
}
HEADRACE_INLINE F div(F a, F b) {
  F r;
  HEADRACE_PARTS(vdivq_f32(a.v[i], b.v[i]));
}
HEADRACE_INLINE F fma(F a, F b, F c) {
  F r;
  HEADRACE_PARTS(vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
HEADRACE_INLINE F max(F a, F b) {
  F r;
  HEADRACE_PARTS(vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
HEADRACE_INLINE F min(F a, F b) {
  F r;
  HEADRACE_PARTS(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
HEADRACE_INLINE F abs(F a) {
  F r;
  HEADRACE_PARTS(vabsq_f32(a.v[i]));
}
HEADRACE_INLINE F round_nearest(F a) {
  F r;
  HEADRACE_PARTS(vrndnq_f32(a.v[i]));
}
HEADRACE_INLINE F zero_where_below(F x, float bound, F value) {
  F r;
  HEADRACE_PARTS(vbslq_f32(vcgeq_f32(x.v[i], vdupq_n_f32(bound)), value.v[i], vdupq_n_f32(0.0F)));
}
HEADRACE_INLINE F scale_by_power(F value, F whole) {
  F r;
  HEADRACE_PARTS(vreinterpretq_f32_s32(
      vaddq_s32(vreinterpretq_s32_f32(value.v[i]), vshlq_n_s32(vcvtq_s32_f32(whole.v[i]), 23))));
}
HEADRACE_INLINE F select_first(std::uint32_t count, F first, F rest) {
  static constexpr std::uint32_t lane_numbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  F r;
  HEADRACE_PARTS(vbslq_f32(vcltq_u32(vld1q_u32(lane_numbers + 4 * i), vdupq_n_u32(count)),
                           first.v[i], rest.v[i]));
}

HEADRACE_INLINE float reduce_add(F x) {
  const float32x4_t q = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t e = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(e, 0) + vget_lane_f32(e, 1);
}
/// out[i] = (x[4i] + x[4i + 1]) + (x[4i + 2] + x[4i + 3])
HEADRACE_INLINE void store_sums_of_4(float* out, F x) {
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(x.v[0], x.v[1]), vpaddq_f32(x.v[2], x.v[3])));
}
HEADRACE_INLINE float reduce_max(F x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}

HEADRACE_INLINE F load_f16(const std::uint16_t* p) {
  F r;
  HEADRACE_PARTS(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
HEADRACE_INLINE F load_bf16(const std::uint16_t* p) {
  F r;
  HEADRACE_PARTS(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
HEADRACE_INLINE void store_f16(std::uint16_t* p, F x) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}

/// Rounds to nearest, ties to even; finite values only.
HEADRACE_INLINE void store_bf16(std::uint16_t* p, F x) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vst1_u16(p + 4 * i, vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF))), 16));
  }
}
/// Pairs of bf16 as two vectors of f32: the first of each pair, and the second.
struct Pairs {
  F first, second;
};
HEADRACE_INLINE Pairs load_pairs(const std::uint16_t* p) {
  Pairs r;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t words = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
    r.first.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
    r.second.v[i] = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xFFFF0000U)));
  }
  return r;
}
HEADRACE_INLINE Pairs set1_pair(const std::uint16_t* p) {
  return {set1(bf16_value(p[0])), set1(bf16_value(p[1]))};
}
HEADRACE_INLINE F dot2(F acc, Pairs a, Pairs b) {
  return fma(a.first, b.first, fma(a.second, b.second, acc));
}

struct Int16Pairs {
  int16x8_t v[4];
};
HEADRACE_INLINE Int16Pairs load_int16_pairs(const std::uint16_t* p) {
  Int16Pairs r;
  HEADRACE_PARTS(vreinterpretq_s16_u16(vld1q_u16(p + 8 * i)));
}
HEADRACE_INLINE Int16Pairs repeat_int16_pairs(const std::uint16_t* p) {
  const int16x8_t pairs = vreinterpretq_s16_u16(vld1q_u16(p));
  return {{pairs, pairs, pairs, pairs}};
}
HEADRACE_INLINE I dot2(I acc, Int16Pairs a, Int16Pairs b) {
  I r;
  for (int i = 0; i < 4; ++i) {
    const int32x4_t low = vmull_s16(vget_low_s16(a.v[i]), vget_low_s16(b.v[i]));
    const int32x4_t high = vmull_high_s16(a.v[i], b.v[i]);
    r.v[i] = vaddq_s32(acc.v[i], vpaddq_s32(low, high));
  }
  return r;
}
HEADRACE_INLINE void store_int16(std::int16_t* p, F x) {
  for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vqmovn_s32(vcvtnq_s32_f32(x.v[i])));
}

HEADRACE_INLINE F load_int8(const std::int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t words[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
  F r;
  for (int i = 0; i < 4; i += 2) {
    r.v[i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(words[i / 2])));
    r.v[i + 1] = vcvtq_f32_s32(vmovl_high_s16(words[i / 2]));
  }
  return r;
}

/// v[i] lane j <-> v[j] lane i, in blocks of 4 x 4.
HEADRACE_INLINE void transpose(F (&v)[16]) {
  const auto wide = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
  const auto narrow = [](float64x2_t x) { return vreinterpretq_f32_f64(x); };
  F t[16];
#pragma GCC unroll 4
  for (int row = 0; row < 4; ++row) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const F* in = v + 4 * row;
      const float64x2_t a = wide(vtrn1q_f32(in[0].v[part], in[1].v[part]));
      const float64x2_t b = wide(vtrn2q_f32(in[0].v[part], in[1].v[part]));
      const float64x2_t c = wide(vtrn1q_f32(in[2].v[part], in[3].v[part]));
      const float64x2_t d = wide(vtrn2q_f32(in[2].v[part], in[3].v[part]));
      F* out = t + 4 * part;
      out[0].v[row] = narrow(vtrn1q_f64(a, c));
      out[1].v[row] = narrow(vtrn1q_f64(b, d));
      out[2].v[row] = narrow(vtrn2q_f64(a, c));
      out[3].v[row] = narrow(vtrn2q_f64(b, d));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

HEADRACE_INLINE I set1_i32(std::int32_t x) {
  I r;
  HEADRACE_PARTS(vdupq_n_s32(x));
}
HEADRACE_INLINE I sums_of_4(const I (&x)[4]) {
  I r;
  HEADRACE_PARTS(vpaddq_s32(vpaddq_s32(x[i].v[0], x[i].v[1]), vpaddq_s32(x[i].v[2], x[i].v[3])));
}
HEADRACE_INLINE F to_float(I x) {
  F r;
  HEADRACE_PARTS(vcvtq_f32_s32(x.v[i]));
}
HEADRACE_INLINE std::int32_t store_int8(std::int8_t* p, F x) {
  int16x4_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = vmovn_s32(vcvtnq_s32_f32(x.v[i]));
  const int8x16_t bytes = vcombine_s8(vmovn_s16(vcombine_s16(words[0], words[1])),
                                      vmovn_s16(vcombine_s16(words[2], words[3])));
  vst1q_s8(p, bytes);
  return vaddlvq_s8(bytes);
}

struct W {
  uint8x16_t v[4];
};
HEADRACE_INLINE W load_weights(const std::uint8_t* p) {
  W r;
  HEADRACE_PARTS(vld1q_u8(p + 16 * i));
}
struct Nibbles {
  W low, high;
};
HEADRACE_INLINE Nibbles load_nibbles(const std::uint8_t* p) {
  Nibbles r;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t bytes = vld1q_u8(p + 16 * i);
    r.low.v[i] = vandq_u8(bytes, vdupq_n_u8(15));
    r.high.v[i] = vshrq_n_u8(bytes, 4);
  }
  return r;
}
HEADRACE_INLINE W low_of(const Nibbles& x) { return x.low; }
HEADRACE_INLINE W high_of(const Nibbles& x) { return x.high; }
/// Weights up to 127 are signed bytes as they are; wider ones are taken 128 lower, which the four
/// activations make good: w a = (w - 128) a + 128 a.
///
/// Products of signed bytes fit 16 bits; their sums are taken in 32. Exact.
template <bool Wide>
HEADRACE_INLINE I dot4(I acc, W w, const std::int8_t* a) {
  std::int32_t four;
  std::memcpy(&four, a, 4);
  const int8x16_t activations = vreinterpretq_s8_s32(vdupq_n_s32(four));
  const int32x4_t missing = vdupq_n_s32(Wide ? 128 * (a[0] + a[1] + a[2] + a[3]) : 0);
  I r;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int8x16_t weights =
        vreinterpretq_s8_u8(Wide ? veorq_u8(w.v[i], vdupq_n_u8(128)) : w.v[i]);
    const int32x4_t start = Wide ? vaddq_s32(acc.v[i], missing) : acc.v[i];
#if defined(__ARM_FEATURE_DOTPROD)
    r.v[i] = vdotq_s32(start, weights, activations);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(activations));
    const int16x8_t high = vmull_high_s8(weights, activations);
    r.v[i] = vaddq_s32(start, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
  }
  return r;
}

#undef HEADRACE_PARTS
