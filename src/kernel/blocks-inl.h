// The integer weight formats of ggml, block by block: how 32 weights are stored, and what they
// mean. Source: the block structs and reference dequantisers of ggml (ggml-common.h,
// ggml-quants.c); the test compares with ggml itself.
//
// Each weight is scale * (q - offset) or scale * q + minimum with q an unsigned byte, so that one
// dot product of unsigned weights and signed activations serves all formats.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// Bytes before the packed quants: f16 scale, then (where there is one) f16 minimum, then (5 bit)
/// the fifth bits.
template <WeightFormat Format>
struct BlockTraits;

template <>
struct BlockTraits<WeightFormat::q4_0> {
  static constexpr std::size_t bytes = 18, quants = 2;
  static constexpr bool has_minimum = false, wide = false;
  static constexpr std::int32_t offset = 8;
};
template <>
struct BlockTraits<WeightFormat::q4_1> {
  static constexpr std::size_t bytes = 20, quants = 4;
  static constexpr bool has_minimum = true, wide = false;
  static constexpr std::int32_t offset = 0;
};
template <>
struct BlockTraits<WeightFormat::q5_0> {
  static constexpr std::size_t bytes = 22, quants = 6;
  static constexpr bool has_minimum = false, wide = false;
  static constexpr std::int32_t offset = 16;
};
template <>
struct BlockTraits<WeightFormat::q5_1> {
  static constexpr std::size_t bytes = 24, quants = 8;
  static constexpr bool has_minimum = true, wide = false;
  static constexpr std::int32_t offset = 0;
};
template <>
struct BlockTraits<WeightFormat::q8_0> {
  static constexpr std::size_t bytes = 34, quants = 2;
  static constexpr bool has_minimum = false, wide = true;
  static constexpr std::int32_t offset = 128;
};
template <>
struct BlockTraits<WeightFormat::iq4_nl> {
  static constexpr std::size_t bytes = 18, quants = 2;
  static constexpr bool has_minimum = false, wide = true;
  static constexpr std::int32_t offset = 128;
};

/// The 16 levels of iq4_nl, plus 128.
alignas(16) static constexpr std::uint8_t iq4_nl_levels[16] = {
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

HEADRACE_INLINE float read_f16(const std::byte* p) {
  std::uint16_t h[16] = {};
  std::memcpy(h, p, 2);
  alignas(64) float v[16];
  store(v, load_f16(h));
  return v[0];
}

/// The 32 weights of a block as unsigned bytes, in order.
template <WeightFormat Format>
HEADRACE_INLINE void unpack_block(const std::byte* block, std::uint8_t* out) {
  const auto* q = reinterpret_cast<const std::uint8_t*>(block + BlockTraits<Format>::quants);
  if constexpr (Format == WeightFormat::q8_0) {
    for (int i = 0; i < 32; ++i) out[i] = static_cast<std::uint8_t>(q[i] ^ 0x80U);
  } else if constexpr (Format == WeightFormat::iq4_nl) {
    for (int i = 0; i < 16; ++i) {
      out[i] = iq4_nl_levels[q[i] & 15U];
      out[i + 16] = iq4_nl_levels[q[i] >> 4];
    }
  } else if constexpr (Format == WeightFormat::q5_0 || Format == WeightFormat::q5_1) {
    std::uint32_t fifth;
    std::memcpy(&fifth, q - 4, 4);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<std::uint8_t>((q[i] & 15U) | (fifth >> i & 1U) << 4);
      out[i + 16] = static_cast<std::uint8_t>(q[i] >> 4 | (fifth >> (i + 16) & 1U) << 4);
    }
  } else {
    for (int i = 0; i < 16; ++i) {
      out[i] = q[i] & 15U;
      out[i + 16] = static_cast<std::uint8_t>(q[i] >> 4);
    }
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
