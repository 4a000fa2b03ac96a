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
HEADRACE_INLINE F min(F a, F b) {
  F r;
  HEADRACE_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
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
/// The first `count` lanes of `first`, the others of `rest`.
HEADRACE_INLINE F select_first(std::uint32_t count, F first, F rest) {
  F r;
  HEADRACE_LANES(static_cast<std::uint32_t>(i) < count ? first.v[i] : rest.v[i]);
}

/// Sum of the 16 lanes: halves, quarters, eighths, in that order.
HEADRACE_INLINE float reduce_add(F x) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) x.v[i] += x.v[i + step];
  }
  return x.v[0];
}
/// out[i] = (x[4i] + x[4i + 1]) + (x[4i + 2] + x[4i + 3])
HEADRACE_INLINE void store_sums_of_4(float* out, F x) {
  for (int i = 0; i < 4; ++i)
    out[i] = (x.v[4 * i] + x.v[4 * i + 1]) + (x.v[4 * i + 2] + x.v[4 * i + 3]);
}
HEADRACE_INLINE float reduce_max(F x) {
  float largest = x.v[0];
  for (int i = 1; i < 16; ++i) largest = largest > x.v[i] ? largest : x.v[i];
  return largest;
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

/// A bf16 is the upper half of an f32. Rounds to nearest, ties to even; finite values only.
HEADRACE_INLINE std::uint16_t float_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}
HEADRACE_INLINE F load_bf16(const std::uint16_t* p) {
  F r;
  HEADRACE_LANES(bf16_value(p[i]));
}
HEADRACE_INLINE void store_bf16(std::uint16_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_bf16(x.v[i]);
}
/// 16 pairs of bf16 as two vectors of f32: the first of each pair, and the second.
struct Pairs {
  F first, second;
};
HEADRACE_INLINE Pairs load_pairs(const std::uint16_t* p) {
  Pairs r;
  for (int i = 0; i < 16; ++i) {
    r.first.v[i] = bf16_value(p[2 * i]);
    r.second.v[i] = bf16_value(p[2 * i + 1]);
  }
  return r;
}
HEADRACE_INLINE Pairs set1_pair(const std::uint16_t* p) {
  return {set1(bf16_value(p[0])), set1(bf16_value(p[1]))};
}
/// acc += a[0] * b[0] + a[1] * b[1], the second product first.
HEADRACE_INLINE F dot2(F acc, Pairs a, Pairs b) {
  return fma(a.first, b.first, fma(a.second, b.second, acc));
}

/// 16 pairs of signed 16-bit integers.
struct Int16Pairs {
  std::int16_t v[32];
};
HEADRACE_INLINE Int16Pairs load_int16_pairs(const std::uint16_t* p) {
  Int16Pairs r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
/// The 4 pairs at `p`, four times.
HEADRACE_INLINE Int16Pairs repeat_int16_pairs(const std::uint16_t* p) {
  Int16Pairs r;
  for (int i = 0; i < 4; ++i) std::memcpy(r.v + 8 * i, p, 16);
  return r;
}
/// acc += a[0] * b[0] + a[1] * b[1]. Exact.
HEADRACE_INLINE I dot2(I acc, Int16Pairs a, Int16Pairs b) {
  I r;
  HEADRACE_LANES(acc.v[i] + a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1]);
}
/// Rounds to the nearest integer; |x| <= 32767.
HEADRACE_INLINE void store_int16(std::int16_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int16_t>(__builtin_rintf(x.v[i]));
}

/// 16 signed bytes.
HEADRACE_INLINE F load_int8(const std::int8_t* p) {
  F r;
  HEADRACE_LANES(static_cast<float>(p[i]));
}

/// v[i] lane j <-> v[j] lane i.
HEADRACE_INLINE void transpose(F (&v)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float upper = v[j].v[i];
      v[j].v[i] = v[i].v[j];
      v[i].v[j] = upper;
    }
  }
}

HEADRACE_INLINE I set1_i32(std::int32_t x) {
  I r;
  HEADRACE_LANES(x);
}
/// Lane 4i + j: the sum of lanes 4j to 4j + 3 of x[i].
HEADRACE_INLINE I sums_of_4(const I (&x)[4]) {
  I r;
  for (int lane = 0; lane < 16; ++lane) {
    const std::int32_t* four = x[lane / 4].v + lane % 4 * 4;
    r.v[lane] = (four[0] + four[1]) + (four[2] + four[3]);
  }
  return r;
}
HEADRACE_INLINE F to_float(I x) {
  F r;
  HEADRACE_LANES(static_cast<float>(x.v[i]));
}
/// Rounds to the nearest integer and narrows to 16 signed bytes; |x| <= 127. Returns their sum.
HEADRACE_INLINE std::int32_t store_int8(std::int8_t* p, F x) {
  std::int32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<std::int8_t>(__builtin_rintf(x.v[i]));
    sum += p[i];
  }
  return sum;
}

struct W {
  const std::uint8_t* p;
};
HEADRACE_INLINE W load_weights(const std::uint8_t* p) { return {p}; }
struct Nibbles {
  std::uint8_t low[64], high[64];
};
HEADRACE_INLINE Nibbles load_nibbles(const std::uint8_t* p) {
  Nibbles r;
  for (int i = 0; i < 64; ++i) {
    r.low[i] = p[i] & 15;
    r.high[i] = static_cast<std::uint8_t>(p[i] >> 4);
  }
  return r;
}
HEADRACE_INLINE W low_of(const Nibbles& x) { return {x.low}; }
HEADRACE_INLINE W high_of(const Nibbles& x) { return {x.high}; }
template <bool Wide>
HEADRACE_INLINE I dot4(I acc, W w, const std::int8_t* a) {
  I r;
  HEADRACE_LANES(acc.v[i] + w.p[4 * i] * a[0] + w.p[4 * i + 1] * a[1] + w.p[4 * i + 2] * a[2] +
                 w.p[4 * i + 3] * a[3]);
}

#undef HEADRACE_LANES
