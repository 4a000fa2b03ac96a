// AVX-512: rows times 16 columns of the k formats, a stored unit of 256 weights at a time. What
// blocks share is loaded once: bytes that hold weights of two blocks, and the scales of all eight.
// Sums are those of rows_product_16(). Included by row_product-inl.h only.
#pragma once

/// A pair of blocks whose weights lie in the same bytes: q4_k and q5_k keep block 2j in the lower
/// halves of bytes and 2j + 1 in the upper ones, q6_k blocks j and j + 2 of each four.
template <WeightFormat Format>
constexpr std::uint32_t first_of_pair(std::uint32_t pair) {
  return Format == WeightFormat::q6_k ? pair / 2 * 4 + pair % 2 : 2 * pair;
}
template <WeightFormat Format>
inline constexpr std::uint32_t pair_distance = Format == WeightFormat::q6_k ? 2 : 1;

/// Weights 0..15 or 16..31 (by `half`) of both blocks of a pair, of columns 0, 4, 8, 12.
template <WeightFormat Format>
HEADRACE_INLINE void load_pair(const std::byte* unit, std::size_t stride, std::uint32_t pair,
                               std::uint32_t half, __m512i& first, __m512i& second) {
  const __m512i nibble = _mm512_set1_epi8(15);
  if constexpr (Format == WeightFormat::q6_k) {
    const std::uint32_t part = pair % 2;
    const __m512i four = load_four(unit + pair / 2 * 64 + part * 32 + half * 16, stride);
    const __m512i two = load_four(unit + 128 + pair / 2 * 32 + half * 16, stride);
    const __m512i upper = _mm512_set1_epi8(0x30);
    // Bits 0 and 1 of a byte belong to part 0, 2 and 3 to part 1, and so on.
    const __m512i top_first = part == 0 ? _mm512_slli_epi16(two, 4) : _mm512_slli_epi16(two, 2);
    const __m512i top_second = part == 0 ? two : _mm512_srli_epi16(two, 2);
    first = _mm512_or_si512(_mm512_and_si512(four, nibble), _mm512_and_si512(top_first, upper));
    second = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(four, 4), nibble),
                             _mm512_and_si512(top_second, upper));
  } else {
    const std::byte* q = unit + BlockTraits<Format>::quants + pair * 32 + half * 16;
    const __m512i packed = load_four(q, stride);
    first = _mm512_and_si512(packed, nibble);
    second = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    if constexpr (Format == WeightFormat::q5_k) {
      const __m512i bits = _mm512_srli_epi16(load_four(unit + 16 + half * 16, stride), 2 * pair);
      const __m512i bit4 = _mm512_set1_epi8(16);
      first = _mm512_or_si512(first, _mm512_and_si512(_mm512_slli_epi16(bits, 4), bit4));
      second = _mm512_or_si512(second, _mm512_and_si512(_mm512_slli_epi16(bits, 3), bit4));
    }
  }
}

/// Dot products of all blocks of a unit with the row's values at `a`, without the offset.
template <WeightFormat Format, int Rows>
HEADRACE_INLINE void unit_dots(const std::byte* unit, std::size_t stride,
                               const std::int8_t* const (&a)[Rows],
                               __m512i (&dots)[Rows][8][BlockTraits<Format>::scales]) {
  constexpr int last = BlockTraits<Format>::scales - 1;
#pragma GCC unroll 4
  for (std::uint32_t pair = 0; pair < 4; ++pair) {
    const std::uint32_t b = first_of_pair<Format>(pair);
    __m512i words[Rows][2][last + 1][4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        __m512i weights[2];
        load_pair<Format>(unit + static_cast<std::size_t>(g) * stride, stride, pair,
                          static_cast<std::uint32_t>(half), weights[0], weights[1]);
#pragma GCC unroll 2
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
          for (std::uint32_t which = 0; which < 2; ++which) {
            const std::int8_t* values =
                a[i] + (b + which * pair_distance<Format>)*quant_block + half * 16;
            const __m512i activations =
                _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
            __m512i& word = words[i][which][half * last][g];
            const bool fresh = half == 0 || last == 1;
            word = _mm512_dpbusd_epi32(fresh ? _mm512_setzero_si512() : word, weights[which],
                                       activations);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
      for (std::uint32_t which = 0; which < 2; ++which) {
#pragma GCC unroll 2
        for (int s = 0; s <= last; ++s)
          dots[i][b + which * pair_distance<Format>][s] = add_words(words[i][which][s]);
      }
    }
  }
}

template <WeightFormat Format, int Rows>
HEADRACE_INLINE void k_rows_product_16(const std::byte* first_row, std::size_t stride,
                                       const QuantizedRows& rows, F (&sums)[Rows]) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t units = rows.width / (quant_block * 8);
  for (int i = 0; i < Rows; ++i) sums[i] = zero();
  for (std::uint32_t u = 0; u < units; ++u) {
    const std::byte* ahead = first_row + 16 * (stride + u * Traits::bytes);
    for (std::size_t line = 0; line < 16 * Traits::bytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
    }
    const std::byte* unit = first_row + u * Traits::bytes;
    const std::int8_t* a[Rows];
    for (int i = 0; i < Rows; ++i) {
      a[i] =
          rows.values + static_cast<std::size_t>(i) * rows.width + std::size_t{u} * 8 * quant_block;
    }
    __m512i dots[Rows][8][Traits::scales];
    unit_dots<Format>(unit, stride, a, dots);
    const ScaleWords<Format> words = load_scale_words<Format>(unit, stride);
#pragma GCC unroll 8
    for (std::uint32_t j = 0; j < 8; ++j) {
      F scales[Traits::scales];
      F minimum;
      scales_of_block<Format>(words, j, scales, minimum);
#pragma GCC unroll 2
      for (int i = 0; i < Rows; ++i) {
        const QuantizedRows row = rows.from_row(static_cast<std::size_t>(i));
        const std::uint32_t b = u * 8 + j;
        I with_offset[Traits::scales];
        for (std::size_t s = 0; s < Traits::scales; ++s) {
          with_offset[s].v =
              _mm512_add_epi32(dots[i][j][s], _mm512_set1_epi32(offset_dot<Format>(row, b, s)));
        }
        sums[i] = add_block<Format>(sums[i], with_offset, scales, minimum, row.scales[b],
                                    row.scaled_sums[b]);
      }
    }
  }
}

/// `Rows` rows times 16 columns: each block of weights is loaded once for all of them.
template <WeightFormat Format, int Rows>
HEADRACE_INLINE void rows_product_16(const std::byte* first_row, std::size_t stride,
                                     const QuantizedRows& rows, F (&sums)[Rows]) {
  using Traits = BlockTraits<Format>;
  if constexpr (Traits::blocks > 1) return k_rows_product_16<Format>(first_row, stride, rows, sums);
  const std::uint32_t blocks = rows.width / quant_block;
  const std::size_t prefetch_bytes = 16 * Traits::bytes / Traits::blocks;
  for (int i = 0; i < Rows; ++i) sums[i] = zero();
  for (std::uint32_t b = 0; b < blocks; ++b) {
    const std::byte* ahead = first_row + 16 * stride + b * prefetch_bytes;
    for (std::size_t line = 0; line < prefetch_bytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
    }
    __m512i low[4];
    __m512i high[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      load_quants<Format>(first_row + static_cast<std::size_t>(g) * stride, stride, b, low[g],
                          high[g]);
    }
    F scales[Traits::scales];
    F minimum;
    load_scales<Format>(first_row, stride, b, scales, minimum);
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) {
      const QuantizedRows row = rows.from_row(static_cast<std::size_t>(i));
      I dots[Traits::scales];
      block_dots<Format>(low, high, row, b, dots);
      sums[i] =
          add_block<Format>(sums[i], dots, scales, minimum, row.scales[b], row.scaled_sums[b]);
    }
  }
}
