// The integer weight formats of ggml, block by block: how 32 weights are stored, and what they
// mean. Source: the block structs and reference dequantisers of ggml (ggml-common.h,
// ggml-quants.c); the test compares with ggml itself.
//
// Each weight is scale * (q - offset) or scale * q + minimum with q an unsigned byte, so that one
// dot product of unsigned weights and signed activations serves all formats.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// What a format's blocks look like.
struct BlockFacts {
  std::size_t bytes;   ///< of a stored unit, which is 32 weights or (k formats) 256
  std::size_t quants;  ///< where the packed quants begin in it
  std::size_t blocks;  ///< of 32 weights in it
  std::size_t scales;  ///< of 32 weights: one, or one per half
  bool has_minimum;
  bool wide;  ///< unsigned weights may exceed 127
  std::int32_t offset;
};

constexpr BlockFacts block_facts(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_0:
      return {18, 2, 1, 1, false, false, 8};
    case WeightFormat::q4_1:
      return {20, 4, 1, 1, true, false, 0};
    case WeightFormat::q5_0:
      return {22, 6, 1, 1, false, false, 16};
    case WeightFormat::q5_1:
      return {24, 8, 1, 1, true, false, 0};
    case WeightFormat::q8_0:
      return {34, 2, 1, 1, false, true, 128};
    case WeightFormat::iq4_nl:
      return {18, 2, 1, 1, false, true, 128};
    case WeightFormat::q4_k:
      return {144, 16, 8, 1, true, false, 0};
    case WeightFormat::q5_k:
      return {176, 48, 8, 1, true, false, 0};
    case WeightFormat::q6_k:
      return {210, 0, 8, 2, false, false, 32};
    default:
      return {};  // not an integer format
  }
}

/// The facts of a format known when compiling.
template <WeightFormat Format>
struct BlockTraits {
  static constexpr std::size_t bytes = block_facts(Format).bytes;
  static constexpr std::size_t quants = block_facts(Format).quants;
  static constexpr std::size_t blocks = block_facts(Format).blocks;
  static constexpr std::size_t scales = block_facts(Format).scales;
  static constexpr bool has_minimum = block_facts(Format).has_minimum;
  static constexpr bool wide = block_facts(Format).wide;
  static constexpr std::int32_t offset = block_facts(Format).offset;
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

/// Where block `b` of a row begins; the k formats give the unit that it is part of.
template <WeightFormat Format>
HEADRACE_INLINE const std::byte* block_unit(const std::byte* row, std::uint32_t b) {
  return row + b / BlockTraits<Format>::blocks * BlockTraits<Format>::bytes;
}

/// 32 weights as unsigned bytes, in order, and what turns them into numbers.
struct Block {
  std::uint8_t quants[quant_block];
  float scales[2];
  float minimum;
};

/// 6-bit scale and minimum of block `j` of 8, packed in 12 bytes (q4_k, q5_k).
HEADRACE_INLINE void read_scale_and_minimum(const std::uint8_t* packed, std::uint32_t j,
                                            std::uint32_t& scale, std::uint32_t& minimum) {
  if (j < 4) {
    scale = packed[j] & 63U;
    minimum = packed[j + 4] & 63U;
  } else {
    scale = (packed[j + 4] & 15U) | static_cast<std::uint32_t>(packed[j - 4] >> 6) << 4;
    minimum = static_cast<std::uint32_t>(packed[j + 4] >> 4) |
              static_cast<std::uint32_t>(packed[j] >> 6) << 4;
  }
}

template <WeightFormat Format>
HEADRACE_INLINE void read_k_block(const std::byte* unit, std::uint32_t j, Block& out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(unit);
  if constexpr (Format == WeightFormat::q6_k) {
    const std::uint32_t half = j / 4;
    const std::uint32_t part = j % 4;
    const std::uint8_t* low = bytes + half * 64 + (part & 1U) * 32;
    const std::uint8_t* high = bytes + 128 + half * 32;
    for (std::uint32_t i = 0; i < quant_block; ++i) {
      const std::uint32_t nibble = part < 2 ? low[i] & 15U : low[i] >> 4;
      out.quants[i] = static_cast<std::uint8_t>(nibble | (high[i] >> (2 * part) & 3U) << 4);
    }
    const auto* scales = reinterpret_cast<const std::int8_t*>(bytes + 192) + j * 2;
    const float scale = read_f16(unit + 208);
    out.scales[0] = scale * static_cast<float>(scales[0]);
    out.scales[1] = scale * static_cast<float>(scales[1]);
    out.minimum = 0.0F;
  } else {
    const std::uint8_t* q = bytes + BlockTraits<Format>::quants + j / 2 * 32;
    for (std::uint32_t i = 0; i < quant_block; ++i) {
      std::uint32_t quant = j % 2 == 0 ? q[i] & 15U : q[i] >> 4;
      if constexpr (Format == WeightFormat::q5_k) quant |= (bytes[16 + i] >> j & 1U) << 4;
      out.quants[i] = static_cast<std::uint8_t>(quant);
    }
    std::uint32_t scale;
    std::uint32_t minimum;
    read_scale_and_minimum(bytes + 4, j, scale, minimum);
    out.scales[0] = read_f16(unit) * static_cast<float>(scale);
    out.scales[1] = out.scales[0];
    out.minimum = 0.0F - read_f16(unit + 2) * static_cast<float>(minimum);
  }
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

/// Block `b` of a row.
template <WeightFormat Format>
HEADRACE_INLINE void read_block(const std::byte* row, std::uint32_t b, Block& out) {
  using Traits = BlockTraits<Format>;
  const std::byte* unit = block_unit<Format>(row, b);
  if constexpr (Traits::blocks > 1) {
    read_k_block<Format>(unit, b % Traits::blocks, out);
  } else {
    unpack_block<Format>(unit, out.quants);
    out.scales[0] = out.scales[1] = read_f16(unit);
    out.minimum = Traits::has_minimum ? read_f16(unit + 2) : 0.0F;
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
