// AVX2: blocks of integer weights of 16 columns, as they are stored: the products of one column
// fill a register, and the sums of eight columns are gathered in one. Included by row_product-inl.h
// only.
#pragma once

/// Weights that need all 8 bits are taken as signed bytes here, and have no offset.
template <WeightFormat Format>
inline constexpr bool is_signed = BlockTraits<Format>::wide;

HEADRACE_INLINE __m256i load_32(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
HEADRACE_INLINE __m128i load_16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
HEADRACE_INLINE __m256i bits_of_bytes(__m256i v, std::uint32_t shift, int mask) {
  const __m256i moved = _mm256_srl_epi16(v, _mm_cvtsi32_si128(static_cast<int>(shift)));
  return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask)));
}

/// Bits [shift, shift + count) of each word.
HEADRACE_INLINE __m256i bits_of(__m256i words, std::uint32_t shift, std::uint32_t count) {
  const __m256i moved = _mm256_srl_epi32(words, _mm_cvtsi32_si128(static_cast<int>(shift)));
  return _mm256_and_si256(moved, _mm256_set1_epi32((1 << count) - 1));
}

HEADRACE_INLINE __m256 high_halves(__m256i words) {
  const __m256i high = _mm256_srli_epi32(words, 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
HEADRACE_INLINE __m256 low_halves(__m256i words) {
  return high_halves(_mm256_slli_epi32(words, 16));
}

/// Words 0..3 of the 16 bytes at `p` in each of 8 columns.
HEADRACE_INLINE void load_words(const std::byte* p, std::size_t stride, __m256i (&words)[4]) {
  __m256i in[4];
#pragma GCC unroll 4
  for (std::size_t g = 0; g < 4; ++g) {
    in[g] = _mm256_set_m128i(load_16(p + (g + 4) * stride), load_16(p + g * stride));
  }
  const __m256i a = _mm256_unpacklo_epi32(in[0], in[1]);
  const __m256i b = _mm256_unpackhi_epi32(in[0], in[1]);
  const __m256i c = _mm256_unpacklo_epi32(in[2], in[3]);
  const __m256i d = _mm256_unpackhi_epi32(in[2], in[3]);
  words[0] = _mm256_unpacklo_epi64(a, c);
  words[1] = _mm256_unpackhi_epi64(a, c);
  words[2] = _mm256_unpacklo_epi64(b, d);
  words[3] = _mm256_unpackhi_epi64(b, d);
}

/// Scales and minimum of block `b` of 8 columns.
template <WeightFormat Format>
HEADRACE_INLINE void load_scales(const std::byte* row, std::size_t stride, std::uint32_t b,
                                 __m256 (&scales)[BlockTraits<Format>::scales], __m256& minimum) {
  using Traits = BlockTraits<Format>;
  const std::byte* unit = block_unit<Format>(row, b);
  const std::uint32_t j = b % Traits::blocks;
  __m256i words[4];
  minimum = _mm256_setzero_ps();
  if constexpr (Format == WeightFormat::q6_k) {
    load_words(unit + 194, stride, words);  // the last 16 bytes: scales 2..15, then the f16 scale
    const __m256 scale = high_halves(words[3]);
    __m256i first;
    if (j == 0) {
      __m256i start[4];
      load_words(unit + 192, stride, start);
      first = start[0];
    } else {
      first = _mm256_srl_epi32(words[(j - 1) / 2], _mm_cvtsi32_si128((j - 1) % 2 == 0 ? 0 : 16));
    }
    const __m256i low = _mm256_srai_epi32(_mm256_slli_epi32(first, 24), 24);
    const __m256i high = _mm256_srai_epi32(_mm256_slli_epi32(first, 16), 24);
    scales[0] = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(low));
    scales[1] = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(high));
  } else if constexpr (Traits::blocks > 1) {
    load_words(unit, stride, words);
    __m256i scale;
    __m256i bottom;
    if (j < 4) {
      scale = bits_of(words[1], 8 * j, 6);
      bottom = bits_of(words[2], 8 * j, 6);
    } else {
      const std::uint32_t at = 8 * (j - 4);
      scale = _mm256_or_si256(bits_of(words[3], at, 4),
                              _mm256_slli_epi32(bits_of(words[1], at + 6, 2), 4));
      bottom = _mm256_or_si256(bits_of(words[3], at + 4, 4),
                               _mm256_slli_epi32(bits_of(words[2], at + 6, 2), 4));
    }
    scales[0] = _mm256_mul_ps(low_halves(words[0]), _mm256_cvtepi32_ps(scale));
    minimum = _mm256_sub_ps(_mm256_setzero_ps(),
                            _mm256_mul_ps(high_halves(words[0]), _mm256_cvtepi32_ps(bottom)));
  } else {
    load_words(unit, stride, words);
    scales[0] = low_halves(words[0]);
    if constexpr (Traits::has_minimum) minimum = high_halves(words[0]);
  }
}

/// The 32 weights of block `b` of one column, in order.
template <WeightFormat Format>
HEADRACE_INLINE __m256i load_quants(const std::byte* row, std::uint32_t b) {
  using Traits = BlockTraits<Format>;
  const std::byte* unit = block_unit<Format>(row, b);
  const std::uint32_t j = b % Traits::blocks;
  if constexpr (Format == WeightFormat::q8_0) {
    return load_32(unit + 2);
  } else if constexpr (Traits::blocks == 1) {
    const __m128i packed = load_16(unit + Traits::quants);
    __m256i q =
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed), _mm256_set1_epi8(15));
    if constexpr (Format == WeightFormat::iq4_nl) {
      const __m128i levels = _mm_xor_si128(
          _mm_load_si128(reinterpret_cast<const __m128i*>(iq4_nl_levels)), _mm_set1_epi8(-128));
      q = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), q);
    } else if constexpr (Format == WeightFormat::q5_0 || Format == WeightFormat::q5_1) {
      // The word before the quants holds bit 4 of each weight: byte i / 8, bit i % 8.
      std::int32_t fifths;
      std::memcpy(&fifths, unit + Traits::quants - 4, 4);
      const __m256i byte =
          _mm256_setr_epi64x(0, 0x0101010101010101LL, 0x0202020202020202LL, 0x0303030303030303LL);
      const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
      const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(fifths), byte);
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
      q = _mm256_or_si256(q, _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
    return q;
  } else if constexpr (Format == WeightFormat::q6_k) {
    const std::uint32_t part = j % 4;
    const __m256i bottom = load_32(unit + j / 4 * 64 + (part & 1U) * 32);
    const __m256i top = load_32(unit + 128 + j / 4 * 32);
    return _mm256_or_si256(bits_of_bytes(bottom, part / 2 * 4, 15),
                           _mm256_slli_epi16(bits_of_bytes(top, 2 * part, 3), 4));
  } else {
    const __m256i q = bits_of_bytes(load_32(unit + Traits::quants + j / 2 * 32), j % 2 * 4, 15);
    if constexpr (Format == WeightFormat::q4_k) return q;
    return _mm256_or_si256(q, _mm256_slli_epi16(bits_of_bytes(load_32(unit + 16), j, 1), 4));
  }
}

/// Products of 32 weights and activations, added in fours. Pairs are added in 16 bits: unsigned
/// weights are at most 63, and 2 * 128 * 127 is the most of signed ones, so nothing saturates.
template <WeightFormat Format>
HEADRACE_INLINE __m256i block_products(__m256i weights, __m256i a) {
  const __m256i pairs = is_signed<Format> ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights),
                                                                 _mm256_sign_epi8(a, weights))
                                          : _mm256_maddubs_epi16(weights, a);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/// Dot products of one block of 8 columns with one row, with the offset.
template <WeightFormat Format>
HEADRACE_INLINE void block_dots(const __m256i (&weights)[8], const QuantizedRows& row,
                                std::uint32_t b, __m256i (&dots)[BlockTraits<Format>::scales]) {
  const __m256i a = load_32(reinterpret_cast<const std::byte*>(row.values + b * quant_block));
  __m256i sums[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) sums[i] = block_products<Format>(weights[i], a);
  // Columns 0..3 and 4..7, the first 16 weights of each in the lower part.
  const __m256i left =
      _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
  const __m256i right =
      _mm256_hadd_epi32(_mm256_hadd_epi32(sums[4], sums[5]), _mm256_hadd_epi32(sums[6], sums[7]));
  const __m256i halves[2] = {_mm256_permute2x128_si256(left, right, 0x20),
                             _mm256_permute2x128_si256(left, right, 0x31)};
  if constexpr (BlockTraits<Format>::scales == 2) {
    for (std::size_t i = 0; i < 2; ++i) {
      dots[i] = _mm256_add_epi32(halves[i], _mm256_set1_epi32(offset_dot<Format>(row, b, i)));
    }
  } else {
    dots[0] = _mm256_add_epi32(halves[0], halves[1]);
    if constexpr (!is_signed<Format>) {
      dots[0] = _mm256_add_epi32(dots[0], _mm256_set1_epi32(offset_dot<Format>(row, b, 0)));
    }
  }
}

/// `Rows` rows times 16 columns: each block of weights is loaded once for all of them.
template <WeightFormat Format, int Rows>
HEADRACE_INLINE void rows_product_16(const std::byte* first_row, std::size_t stride,
                                     const QuantizedRows& rows, F (&sums)[Rows]) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = rows.width / quant_block;
  const std::size_t prefetch_bytes = 16 * Traits::bytes / Traits::blocks;
  for (int i = 0; i < Rows; ++i) sums[i] = zero();
  for (std::uint32_t b = 0; b < blocks; ++b) {
    const std::byte* ahead = first_row + 16 * stride + b * prefetch_bytes;
    for (std::size_t line = 0; line < prefetch_bytes; line += 64) {
      __builtin_prefetch(ahead + line);
    }
    __m256 scales[2][Traits::scales];
    __m256 minimums[2];
    __m256i dots[2][Rows][Traits::scales];
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
      const std::byte* row = first_row + half * 8 * stride;
      load_scales<Format>(row, stride, b, scales[half], minimums[half]);
      __m256i weights[8];
#pragma GCC unroll 8
      for (std::size_t i = 0; i < 8; ++i) weights[i] = load_quants<Format>(row + i * stride, b);
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i) {
        block_dots<Format>(weights, rows.from_row(static_cast<std::size_t>(i)), b, dots[half][i]);
      }
    }
    F scale[Traits::scales];
    for (std::size_t part = 0; part < Traits::scales; ++part) {
      scale[part] = {scales[0][part], scales[1][part]};
    }
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) {
      const QuantizedRows row = rows.from_row(static_cast<std::size_t>(i));
      I dot[Traits::scales];
      for (std::size_t part = 0; part < Traits::scales; ++part) {
        dot[part] = {dots[0][i][part], dots[1][i][part]};
      }
      sums[i] = add_block<Format>(sums[i], dot, scale, {minimums[0], minimums[1]}, row.scales[b],
                                  row.scaled_sums[b]);
    }
  }
}

template <WeightFormat Format>
static void unpack_panel_direct(const WeightRows& weights, std::uint32_t first, IntegerPanel out) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = weights.width / quant_block;
  const std::size_t stride = weights.row_bytes;
  const __m256i flip = _mm256_set1_epi8(is_signed<Format> ? -128 : 0);
  for (std::uint32_t part = 0; part < panel_columns / 8; ++part) {
    const std::byte* row = weights.data + (first + part * 8) * stride;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      __m256 words[8];
#pragma GCC unroll 8
      for (std::size_t i = 0; i < 8; ++i) {
        const __m256i quants = load_quants<Format>(row + i * stride, b);
        words[i] = _mm256_castsi256_ps(_mm256_xor_si256(quants, flip));
      }
      transpose_8x8(words);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < 8; ++k) {
        std::uint8_t* at = out.weights + (b * 8 + k) * panel_columns * 4 + part * 32;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_castps_si256(words[k]));
      }
      __m256 scales[Traits::scales];
      __m256 minimum;
      load_scales<Format>(row, stride, b, scales, minimum);
      for (std::size_t i = 0; i < Traits::scales; ++i) {
        _mm256_storeu_ps(out.scales + (b * Traits::scales + i) * panel_columns + part * 8,
                         scales[i]);
      }
      if constexpr (Traits::has_minimum) {
        _mm256_storeu_ps(out.minimums + std::size_t{b} * panel_columns + part * 8, minimum);
      }
    }
  }
}
