// Plain C++: runs anywhere, and is the text to read first. Included by simd.h only.
#pragma once

struct F {
  float v[16];
};
struct I {
  std::int32_t v[16];
};

#define HEADRACE_LANES(expression)                    \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

HEADRACE_INLINE F set1(float x) {
  F r;
  HEADRACE_LANES(x);
}
HEADRACE_INLINE F zero() { return set1(0.0F); }
HEADRACE_INLINE F load(const float* p) {
  F r;
  HEADRACE_LANES(p[i]);
}
HEADRACE_INLINE void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
HEADRACE_INLINE F add(F a, F b) {
  F r;
  HEADRACE_LANES(a.v[i] + b.v[i]);
}
HEADRACE_INLINE F sub(F a, F b) {
  F r;
  HEADRACE_LANES(a.v[i] - b.v[i]);
}
HEADRACE_INLINE F mul(F a, F b) {
  F r;
  HEADRACE_LANES(a.v[i] * b.v[i]);
}
HEADRACE_INLINE F div(F a, F b) {
  F r;
  HEADRACE_LANES(a.v[i] / b.v[i]);
}
/// Two roundings: without the instruction a fused operation is a library call. Compiled with
/// -ffp-contract=off.
HEADRACE_INLINE F fma(F a, F b, F c) {
  F r;
  HEADRACE_LANES(a.v[i] * b.v[i] + c.v[i]);
}
HEADRACE_INLINE F max(F a, F b) {
  F r;
  HEADRACE_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
HEADRACE_INLINE F abs(F a) {
  F r;
  HEADRACE_LANES(__builtin_fabsf(a.v[i]));
}
HEADRACE_INLINE F round_nearest(F a) {
  F r;
  HEADRACE_LANES(__builtin_rintf(a.v[i]));
}
HEADRACE_INLINE F zero_where_below(F x, float bound, F value) {
  F r;
  HEADRACE_LANES(x.v[i] >= bound ? value.v[i] : 0.0F);
}
HEADRACE_INLINE F scale_by_power(F value, F whole) {
  F r;
  for (int i = 0; i < 16; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &value.v[i], 4);
    bits += static_cast<std::uint32_t>(static_cast<std::int32_t>(whole.v[i])) << 23;
    std::memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
HEADRACE_INLINE F keep_first(F x, std::uint32_t count, float fill) {
  F r;
  HEADRACE_LANES(static_cast<std::uint32_t>(i) < count ? x.v[i] : fill);
}

HEADRACE_INLINE float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 31U;
  const std::uint32_t fraction = h & 0x3FFU;
  float magnitude;
  if (exponent == 0) {
    magnitude = static_cast<float>(fraction) * 0x1p-24F;
  } else {
    const std::uint32_t bits =
        exponent == 31 ? 0x7F800000U | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
    std::memcpy(&magnitude, &bits, 4);
  }
  std::uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  bits |= sign;
  std::memcpy(&magnitude, &bits, 4);
  return magnitude;
}
/// Round to nearest, ties to even. Adding a power of two whose last place is the target's makes the
/// hardware round.
HEADRACE_INLINE std::uint16_t float_to_f16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  bits &= 0x7FFFFFFFU;
  if (bits > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U | (bits >> 13 & 0x3FFU));
  if (bits >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (bits < 0x38800000U) {
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5F;
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<std::uint16_t>(sign | (bits - 0x3F000000U));
  }
  bits += 0xFFFU + (bits >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | (bits - 0x38000000U) >> 13);
}
HEADRACE_INLINE F load_f16(const std::uint16_t* p) {
  F r;
  HEADRACE_LANES(f16_to_float(p[i]));
}
HEADRACE_INLINE void store_f16(std::uint16_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_f16(x.v[i]);
}

HEADRACE_INLINE I set1_i32(std::int32_t x) {
  I r;
  HEADRACE_LANES(x);
}
HEADRACE_INLINE F to_float(I x) {
  F r;
  HEADRACE_LANES(static_cast<float>(x.v[i]));
}
HEADRACE_INLINE void store_int8(std::int8_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(__builtin_rintf(x.v[i]));
}

struct W {
  const std::uint8_t* p;
};
HEADRACE_INLINE W load_weights(const std::uint8_t* p) { return {p}; }
template <bool Wide>
HEADRACE_INLINE I dot4(I acc, W w, const std::int8_t* a) {
  I r;
  HEADRACE_LANES(acc.v[i] + w.p[4 * i] * a[0] + w.p[4 * i + 1] * a[1] + w.p[4 * i + 2] * a[2] +
                 w.p[4 * i + 3] * a[3]);
}

#undef HEADRACE_LANES
