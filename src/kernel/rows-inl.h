// Kernels over one row: normalisation, activation, quantisation, rotation.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// Zhang & Sennrich 2019. The mean square is summed in 16 lanes, then across them.
static void rms_norm(const float* x, const float* weight, float epsilon, std::uint32_t width,
                     float* out) {
  F squares = zero();
  HEADRACE_FOR_LANES(i, width) {
    const F v = load(x + i);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(width);
  const F scale = set1(1.0F / __builtin_sqrtf(mean + epsilon));
  HEADRACE_FOR_LANES(i, width) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

/// g / (1 + 2^power), with the power capped so that the division never meets infinity.
HEADRACE_INLINE F gated_by_power(F g, F power) {
  const F capped = sub(zero(), max(sub(zero(), power), set1(-126.0F)));
  return div(g, add(set1(1.0F), exp2_lanes(capped)));
}

/// silu(g) = g / (1 + e^-g), where e^-g is 2^(-g log2 e).
static void swiglu(const float* gate, const float* up, std::uint32_t width, float* out) {
  const F minus_log2e = set1(-1.44269504088896341F);
  HEADRACE_FOR_LANES(i, width) {
    const F g = load(gate + i);
    store(out + i, mul(gated_by_power(g, mul(g, minus_log2e)), load(up + i)));
  }
}

/// gelu(g) = g / 2 (1 + tanh u) = g / (1 + e^-2u) with u = sqrt(2 / pi) (g + 0.044715 g^3)
/// (Hendrycks & Gimpel 2016).
static void geglu(const float* gate, const float* up, std::uint32_t width, float* out) {
  const F linear = set1(-2.30220819814432F);  // -2 sqrt(2 / pi) log2 e
  const F cubic = set1(-0.102943239580023F);  // that times 0.044715
  HEADRACE_FOR_LANES(i, width) {
    const F g = load(gate + i);
    const F power = mul(g, fma(cubic, mul(g, g), linear));
    store(out + i, mul(gated_by_power(g, power), load(up + i)));
  }
}

static void add_rows(float* x, const float* y, std::uint32_t width) {
  HEADRACE_FOR_LANES(i, width) store(x + i, add(load(x + i), load(y + i)));
}

static void quantize_row(const float* x, QuantizedRows out) {
  for (std::uint32_t b = 0; b < out.width / quant_block; ++b) {
    const F v0 = load(x + b * quant_block);
    const F v1 = load(x + b * quant_block + lanes);
    const float largest = reduce_max(max(abs(v0), abs(v1)));
    // Below 2^-120 the inverse could be infinite, and infinity times 0 is no number.
    const float inverse = largest > 0x1p-120F ? 127.0F / largest : 0.0F;
    std::int8_t* values = out.values + b * quant_block;
    std::int32_t* sums = out.sums + std::size_t{b} * 2;
    sums[0] = store_int8(values, mul(v0, set1(inverse)));
    sums[1] = store_int8(values + lanes, mul(v1, set1(inverse)));
    const float scale = largest / 127.0F;
    out.scales[b] = scale;
    out.scaled_sums[b] = scale * static_cast<float>(sums[0] + sums[1]);
  }
}

static void rope_pairs(float* head, const float* cosine, const float* sine, std::uint32_t pairs) {
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const float x = head[2 * i];
    const float y = head[2 * i + 1];
    head[2 * i] = x * cosine[i] - y * sine[i];
    head[2 * i + 1] = x * sine[i] + y * cosine[i];
  }
}

static void rope_halves(float* head, const float* cosine, const float* sine, std::uint32_t pairs) {
  float* other = head + pairs;
  std::uint32_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const F x = load(head + i);
    const F y = load(other + i);
    const F c = load(cosine + i);
    const F s = load(sine + i);
    store(head + i, sub(mul(x, c), mul(y, s)));
    store(other + i, add(mul(x, s), mul(y, c)));
  }
  for (; i < pairs; ++i) {
    const float x = head[i];
    const float y = other[i];
    head[i] = x * cosine[i] - y * sine[i];
    other[i] = x * sine[i] + y * cosine[i];
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
