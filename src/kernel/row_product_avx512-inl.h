// AVX-512: blocks of integer weights of 16 columns at once, as they are stored. Included by
// row_product-inl.h only.
#pragma once

/// 16 bytes of each of four columns, one per 128-bit part.
HEADRACE_INLINE __m512i load_four(const std::byte* p, std::size_t stride) {
  const auto at = [&](std::size_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * stride));
  };
  __m512i v = _mm512_castsi128_si512(at(0));
  v = _mm512_inserti32x4(v, at(4), 1);
  v = _mm512_inserti32x4(v, at(8), 2);
  return _mm512_inserti32x4(v, at(12), 3);
}

/// Transposes 4x4 words inside each 128-bit part: out[k] part j = word k of columns 4j..4j+3, so
/// the 16 words of out[k] are those of columns 0..15 in order when in[g] holds columns g, 4+g, 8+g,
/// 12+g.
HEADRACE_INLINE void transpose_words(const __m512i (&in)[4], __m512i (&out)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(in[0], in[1]);
  const __m512i b = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i c = _mm512_unpacklo_epi32(in[2], in[3]);
  const __m512i d = _mm512_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi64(a, c);
  out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d);
  out[3] = _mm512_unpackhi_epi64(b, d);
}

/// Sums of the four words of each column, in column order.
HEADRACE_INLINE __m512i add_words(const __m512i (&in)[4]) {
  __m512i t[4];
  transpose_words(in, t);
  return _mm512_add_epi32(_mm512_add_epi32(t[0], t[1]), _mm512_add_epi32(t[2], t[3]));
}

HEADRACE_INLINE F low_halves(__m512i words) {
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))};
}
HEADRACE_INLINE F high_halves(__m512i words) { return low_halves(_mm512_srli_epi32(words, 16)); }

/// Bits [shift, shift + count) of each word.
HEADRACE_INLINE __m512i bits_of(__m512i words, std::uint32_t shift, std::uint32_t count) {
  return _mm512_and_si512(_mm512_srli_epi32(words, shift), _mm512_set1_epi32((1 << count) - 1));
}

/// Words 0..3 of the 16 bytes at `p` in each of 16 columns.
HEADRACE_INLINE void load_words(const std::byte* p, std::size_t stride, __m512i (&words)[4]) {
  __m512i columns[4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    columns[g] = load_four(p + static_cast<std::size_t>(g) * stride, stride);
  }
  transpose_words(columns, words);
}

/// The words of 16 columns that hold the scales of a stored unit.
template <WeightFormat Format>
struct ScaleWords {
  __m512i words[4];
  F scale;    ///< of the unit
  F minimum;  ///< of the unit, where the format has one
};

template <WeightFormat Format>
HEADRACE_INLINE ScaleWords<Format> load_scale_words(const std::byte* unit, std::size_t stride) {
  ScaleWords<Format> result;
  if constexpr (Format == WeightFormat::q6_k) {
    load_words(unit + 192, stride, result.words);  // scales 0..15
    __m512i last[4];
    load_words(unit + 194, stride, last);  // the last 16 bytes: they end with the f16 scale
    result.scale = high_halves(last[3]);
    result.minimum = zero();
  } else {
    load_words(unit, stride, result.words);
    result.scale = low_halves(result.words[0]);
    result.minimum = BlockTraits<Format>::has_minimum ? high_halves(result.words[0]) : zero();
  }
  return result;
}

/// Scales and minimum of block `j` of a unit of 16 columns, in column order.
template <WeightFormat Format>
HEADRACE_INLINE void scales_of_block(const ScaleWords<Format>& unit, std::uint32_t j,
                                     F (&scales)[BlockTraits<Format>::scales], F& minimum) {
  if constexpr (Format == WeightFormat::q6_k) {
    const __m512i both = _mm512_srli_epi32(unit.words[j / 2], j % 2 * 16);
    const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24);
    const __m512i high = _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 24);
    scales[0] = mul(unit.scale, to_float(I{low}));
    scales[1] = mul(unit.scale, to_float(I{high}));
    minimum = zero();
  } else if constexpr (BlockTraits<Format>::blocks > 1) {
    const __m512i(&words)[4] = unit.words;
    __m512i scale;
    __m512i bottom;
    if (j < 4) {
      scale = bits_of(words[1], 8 * j, 6);
      bottom = bits_of(words[2], 8 * j, 6);
    } else {
      const std::uint32_t at = 8 * (j - 4);
      scale = _mm512_or_si512(bits_of(words[3], at, 4),
                              _mm512_slli_epi32(bits_of(words[1], at + 6, 2), 4));
      bottom = _mm512_or_si512(bits_of(words[3], at + 4, 4),
                               _mm512_slli_epi32(bits_of(words[2], at + 6, 2), 4));
    }
    scales[0] = mul(unit.scale, to_float(I{scale}));
    minimum = sub(zero(), mul(unit.minimum, to_float(I{bottom})));
  } else {
    scales[0] = unit.scale;
    minimum = unit.minimum;
  }
}

/// Scales and minimum of block `b` of 16 columns, in column order.
template <WeightFormat Format>
HEADRACE_INLINE void load_scales(const std::byte* row, std::size_t stride, std::uint32_t b,
                                 F (&scales)[BlockTraits<Format>::scales], F& minimum) {
  const auto unit = load_scale_words<Format>(block_unit<Format>(row, b), stride);
  scales_of_block<Format>(unit, b % BlockTraits<Format>::blocks, scales, minimum);
}

/// Bytes 0..15 and 16..31 of the weights of block `b` of columns 0, 4, 8, 12 from `row` on.
template <WeightFormat Format>
HEADRACE_INLINE void load_quants(const std::byte* row, std::size_t stride, std::uint32_t b,
                                 __m512i& low, __m512i& high) {
  using Traits = BlockTraits<Format>;
  const std::byte* unit = block_unit<Format>(row, b);
  const std::uint32_t j = b % Traits::blocks;
  const __m512i nibble = _mm512_set1_epi8(15);
  const auto shifted = [](__m512i v, std::uint32_t count) {
    return _mm512_srl_epi16(v, _mm_cvtsi32_si128(static_cast<int>(count)));
  };
  if constexpr (Format == WeightFormat::q8_0) {
    const __m512i flip = _mm512_set1_epi8(-128);
    low = _mm512_xor_si512(load_four(unit + 2, stride), flip);
    high = _mm512_xor_si512(load_four(unit + 18, stride), flip);
  } else if constexpr (Traits::blocks == 1) {
    const __m512i packed = load_four(unit + Traits::quants, stride);
    low = _mm512_and_si512(packed, nibble);
    high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    if constexpr (Format == WeightFormat::iq4_nl) {
      const __m512i levels =
          _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(iq4_nl_levels)));
      low = _mm512_shuffle_epi8(levels, low);
      high = _mm512_shuffle_epi8(levels, high);
    } else if constexpr (Format == WeightFormat::q5_0 || Format == WeightFormat::q5_1) {
      // The word before the quants holds bit 4 of each weight: byte i / 8, bit i % 8.
      const __m512i fifths = load_four(unit + Traits::quants - 4, stride);
      const __m512i bit = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ULL));
      const auto fifth = [&](long long first_byte) {
        const __m512i byte = _mm512_broadcast_i32x4(_mm_set_epi64x(
            (first_byte + 1) * 0x0101010101010101LL, first_byte * 0x0101010101010101LL));
        const __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifths, byte), bit);
        return _mm512_maskz_set1_epi8(set, 16);
      };
      low = _mm512_or_si512(low, fifth(0));
      high = _mm512_or_si512(high, fifth(2));
    }
  } else if constexpr (Format == WeightFormat::q6_k) {
    const std::uint32_t part = j % 4;
    const std::byte* bottom = unit + j / 4 * 64 + (part & 1U) * 32;
    const std::byte* top = unit + 128 + j / 4 * 32;
    const auto join = [&](const std::byte* four, const std::byte* two) {
      const __m512i q = _mm512_and_si512(shifted(load_four(four, stride), part / 2 * 4), nibble);
      const __m512i upper =
          _mm512_and_si512(shifted(load_four(two, stride), 2 * part), _mm512_set1_epi8(3));
      return _mm512_or_si512(q, _mm512_slli_epi16(upper, 4));
    };
    low = join(bottom, top);
    high = join(bottom + 16, top + 16);
  } else {
    const std::byte* q = unit + Traits::quants + j / 2 * 32;
    low = _mm512_and_si512(shifted(load_four(q, stride), j % 2 * 4), nibble);
    high = _mm512_and_si512(shifted(load_four(q + 16, stride), j % 2 * 4), nibble);
    if constexpr (Format == WeightFormat::q5_k) {
      const auto fifth = [&](const std::byte* bits) {
        const __m512i one =
            _mm512_and_si512(shifted(load_four(bits, stride), j), _mm512_set1_epi8(1));
        return _mm512_slli_epi16(one, 4);
      };
      low = _mm512_or_si512(low, fifth(unit + 16));
      high = _mm512_or_si512(high, fifth(unit + 32));
    }
  }
}

/// Dot products of one block of 16 columns with one row, with the offset.
template <WeightFormat Format>
HEADRACE_INLINE void block_dots(const __m512i (&low)[4], const __m512i (&high)[4],
                                const QuantizedRows& row, std::uint32_t b,
                                I (&dots)[BlockTraits<Format>::scales]) {
  constexpr int last = BlockTraits<Format>::scales - 1;
  const std::int8_t* a = row.values + b * quant_block;
  const __m512i a_low =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  const __m512i a_high =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 16)));
  __m512i words[last + 1][4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    words[0][g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low[g], a_low);
    const __m512i start = last == 0 ? words[0][g] : _mm512_setzero_si512();
    words[last][g] = _mm512_dpbusd_epi32(start, high[g], a_high);
  }
  for (std::size_t i = 0; i <= last; ++i) {
    dots[i].v =
        _mm512_add_epi32(add_words(words[i]), _mm512_set1_epi32(offset_dot<Format>(row, b, i)));
  }
}

template <WeightFormat Format>
static void unpack_panel_direct(const WeightRows& weights, std::uint32_t first, IntegerPanel out) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = weights.width / quant_block;
  const std::size_t stride = weights.row_bytes;
  for (std::uint32_t group = 0; group < groups; ++group) {
    const std::byte* row = weights.data + (first + group * lanes) * stride;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      __m512i low[4];
      __m512i high[4];
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) {
        load_quants<Format>(row + static_cast<std::size_t>(g) * stride, stride, b, low[g], high[g]);
      }
      __m512i words[2][4];
      transpose_words(low, words[0]);
      transpose_words(high, words[1]);
      for (std::uint32_t k = 0; k < 8; ++k) {
        _mm512_storeu_si512(out.weights + ((std::size_t{b} * 8 + k) * groups + group) * 64,
                            words[k / 4][k % 4]);
      }
      F scales[Traits::scales];
      F minimum;
      load_scales<Format>(row, stride, b, scales, minimum);
      for (std::size_t i = 0; i < Traits::scales; ++i) {
        store(out.scales + ((b * Traits::scales + i) * groups + group) * lanes, scales[i]);
      }
      if constexpr (Traits::has_minimum) {
        store(out.minimums + (std::size_t{b} * groups + group) * lanes, minimum);
      }
    }
  }
}
