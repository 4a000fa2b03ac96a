// One row times weights in the file's own layout (decode): streams the weights once, 16 columns at
// a time, and gives the bits of the panel kernel. AVX-512 reads q4_0, q4_1 and q8_0 directly and
// also unpacks their panels with the same loads.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

#if defined(HEADRACE_ISA_AVX512)

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

/// The first word of each of 16 blocks: scale in the low half, minimum (or quants) in the high
/// half.
HEADRACE_INLINE __m512i load_heads(const std::byte* block, std::size_t stride) {
  const __m512i a =
      _mm512_unpacklo_epi32(load_four(block, stride), load_four(block + stride, stride));
  const __m512i b = _mm512_unpacklo_epi32(load_four(block + 2 * stride, stride),
                                          load_four(block + 3 * stride, stride));
  return _mm512_unpacklo_epi64(a, b);
}

HEADRACE_INLINE F low_halves(__m512i words) {
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))};
}
HEADRACE_INLINE F high_halves(__m512i words) { return low_halves(_mm512_srli_epi32(words, 16)); }

/// Bytes 0..15 and 16..31 of the weights of columns g, 4+g, 8+g, 12+g.
template <WeightFormat Format>
HEADRACE_INLINE void load_quants(const std::byte* block, std::size_t stride, __m512i& low,
                                 __m512i& high) {
  if constexpr (Format == WeightFormat::q8_0) {
    const __m512i flip = _mm512_set1_epi8(-128);
    low = _mm512_xor_si512(load_four(block + 2, stride), flip);
    high = _mm512_xor_si512(load_four(block + 18, stride), flip);
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i packed = load_four(block + BlockTraits<Format>::quants, stride);
    low = _mm512_and_si512(packed, nibble);
    high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
  }
}

template <WeightFormat Format>
HEADRACE_INLINE F row_product_16(const std::byte* first_block, std::size_t stride,
                                 const QuantizedRows& row) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = row.width / quant_block;
  const std::size_t prefetch_bytes = 16 * Traits::bytes;
  F sum = zero();
  for (std::uint32_t b = 0; b < blocks; ++b) {
    const std::byte* block = first_block + b * Traits::bytes;
    const std::byte* ahead = first_block + 16 * stride + b * prefetch_bytes;
    for (std::size_t line = 0; line < prefetch_bytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
    }
    const std::int8_t* a = row.values + b * quant_block;
    const __m512i a_low =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
    const __m512i a_high =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 16)));
    __m512i words[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      __m512i low;
      __m512i high;
      load_quants<Format>(block + static_cast<std::size_t>(g) * stride, stride, low, high);
      words[g] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), low, a_low), high,
                                     a_high);
    }
    __m512i dot = add_words(words);
    if constexpr (Traits::offset != 0) {
      dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(Traits::offset * row.sums[b]));
    }
    const __m512i heads = load_heads(block, stride);
    const F minimum = Traits::has_minimum ? high_halves(heads) : zero();
    sum = add_block<Traits::has_minimum>(sum, I{dot}, low_halves(heads), minimum, row.scales[b],
                                         row.scaled_sums[b]);
  }
  return sum;
}

template <WeightFormat Format>
static void row_product_direct(const WeightRows& weights, std::uint32_t first,
                               std::uint32_t columns, const QuantizedRows& row, float* out,
                               bool accumulate) {
  for (std::uint32_t c = 0; c < columns; c += lanes) {
    const F sum = row_product_16<Format>(weights.data + (first + c) * weights.row_bytes,
                                         weights.row_bytes, row);
    write_columns(out + c, sum, lanes, accumulate);
  }
}

template <WeightFormat Format>
static void unpack_panel_direct(const WeightRows& weights, std::uint32_t first, IntegerPanel out) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = weights.width / quant_block;
  const std::size_t stride = weights.row_bytes;
  for (std::uint32_t group = 0; group < groups; ++group) {
    const std::byte* start = weights.data + (first + group * lanes) * stride;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      const std::byte* block = start + b * Traits::bytes;
      __m512i low[4];
      __m512i high[4];
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) {
        load_quants<Format>(block + static_cast<std::size_t>(g) * stride, stride, low[g], high[g]);
      }
      __m512i words[8];
      __m512i t[4];
      transpose_words(low, t);
      for (int k = 0; k < 4; ++k) words[k] = t[k];
      transpose_words(high, t);
      for (int k = 0; k < 4; ++k) words[k + 4] = t[k];
      for (std::uint32_t k = 0; k < 8; ++k) {
        _mm512_storeu_si512(out.weights + ((std::size_t{b} * 8 + k) * groups + group) * 64,
                            words[k]);
      }
      const __m512i heads = load_heads(block, stride);
      const std::size_t scale_at = (std::size_t{b} * groups + group) * lanes;
      store(out.scales + scale_at, low_halves(heads));
      if constexpr (Traits::has_minimum) store(out.minimums + scale_at, high_halves(heads));
    }
  }
}

#endif

/// Through a panel of one 16-column group at a time: any integer format.
template <WeightFormat Format>
static void row_product_by_panel(const WeightRows& weights, std::uint32_t first,
                                 std::uint32_t columns, const QuantizedRows& row,
                                 IntegerPanel scratch, float* out, bool accumulate) {
  for (std::uint32_t c = 0; c < columns; c += panel_columns) {
    const std::uint32_t count = columns - c < panel_columns ? columns - c : panel_columns;
    unpack_panel_generic<Format>(weights, first + c, count, scratch);
    integer_panel_rows<Format>(scratch, count, row, 1, {out + c, count, accumulate});
  }
}

template <WeightFormat Format>
static void row_product(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                        const QuantizedRows& row, IntegerPanel scratch, float* out,
                        bool accumulate) {
#if defined(HEADRACE_ISA_AVX512)
  if constexpr (Format == WeightFormat::q4_0 || Format == WeightFormat::q4_1 ||
                Format == WeightFormat::q8_0) {
    const std::uint32_t whole = columns / lanes * lanes;
    row_product_direct<Format>(weights, first, whole, row, out, accumulate);
    first += whole;
    out += whole;
    columns -= whole;
  }
#endif
  if (columns > 0)
    row_product_by_panel<Format>(weights, first, columns, row, scratch, out, accumulate);
}

template <WeightFormat Format>
static void unpack_panel(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                         IntegerPanel out) {
#if defined(HEADRACE_ISA_AVX512)
  if constexpr (Format == WeightFormat::q4_0 || Format == WeightFormat::q4_1 ||
                Format == WeightFormat::q8_0) {
    if (columns == panel_columns) return unpack_panel_direct<Format>(weights, first, out);
  }
#endif
  unpack_panel_generic<Format>(weights, first, columns, out);
}

/// Calls `f.template operator()<Format>()` for a runtime format.
template <typename Callable>
HEADRACE_INLINE void with_format(WeightFormat format, Callable f) {
  switch (format) {
    case WeightFormat::q4_0:
      return f.template operator()<WeightFormat::q4_0>();
    case WeightFormat::q4_1:
      return f.template operator()<WeightFormat::q4_1>();
    case WeightFormat::q5_0:
      return f.template operator()<WeightFormat::q5_0>();
    case WeightFormat::q5_1:
      return f.template operator()<WeightFormat::q5_1>();
    case WeightFormat::q8_0:
      return f.template operator()<WeightFormat::q8_0>();
    case WeightFormat::iq4_nl:
      return f.template operator()<WeightFormat::iq4_nl>();
    case WeightFormat::other:
      return;
  }
}

static void unpack_panel_any(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                             IntegerPanel out) {
  with_format(weights.format,
              [&]<WeightFormat Format>() { unpack_panel<Format>(weights, first, columns, out); });
}

static void integer_panel_product_any(WeightFormat format, const IntegerPanel& panel,
                                      std::uint32_t columns, const QuantizedRows& rows,
                                      std::uint32_t row_count, OutputRows out) {
  with_format(format, [&]<WeightFormat Format>() {
    integer_panel_rows<Format>(panel, columns, rows, row_count, out);
  });
}

static void integer_row_product_any(const WeightRows& weights, std::uint32_t first,
                                    std::uint32_t columns, const QuantizedRows& row,
                                    IntegerPanel scratch, float* out, bool accumulate) {
  with_format(weights.format, [&]<WeightFormat Format>() {
    row_product<Format>(weights, first, columns, row, scratch, out, accumulate);
  });
}

}  // namespace headrace::kernel::HEADRACE_ISA
