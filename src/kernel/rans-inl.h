// Entropy-coded streams (codec/rans.h): 32 coders take turns, so that the lanes of a vector decode
// side by side. Integers only, so that every instruction set gives the same bytes.
//   slot = x % 4096;  e = table[slot];  symbol = e >> 24
//   x = (e % 4096) * (x / 4096) + e / 4096 % 4096;  if (x < 2^16) x = x * 2^16 + the next word
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// One symbol of each lane. Returns false where the words end too early.
static bool rans_decode_round(RansReader& reader, const std::uint32_t* table, std::uint8_t* out) {
  for (std::uint32_t lane = 0; lane < rans_lanes; ++lane) {
    std::uint32_t x = reader.states[lane];
    const std::uint32_t entry = table[x % rans_slots];
    x = entry % rans_slots * (x / rans_slots) + entry / rans_slots % rans_slots;
    if (x < rans_state_min) {
      if (reader.end - reader.next < 2) return false;
      std::uint16_t word;
      std::memcpy(&word, reader.next, sizeof word);
      reader.next += sizeof word;
      x = x << 16 | word;
    }
    reader.states[lane] = x;
    out[lane] = static_cast<std::uint8_t>(entry >> 24);
  }
  return true;
}

#if defined(HEADRACE_ISA_AVX512)

HEADRACE_INLINE __m512i rans_step(__m512i x, const std::uint32_t* table, const std::byte*& next,
                                  std::uint8_t* out) {
  const __m512i low = _mm512_set1_epi32(rans_slots - 1);
  const __m512i entry = _mm512_i32gather_epi32(_mm512_and_si512(x, low), table, 4);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm512_cvtepi32_epi8(_mm512_srli_epi32(entry, 24)));
  x = _mm512_add_epi32(
      _mm512_mullo_epi32(_mm512_and_si512(entry, low), _mm512_srli_epi32(x, rans_bits)),
      _mm512_and_si512(_mm512_srli_epi32(entry, rans_bits), low));
  const __mmask16 wants = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(rans_state_min));
  const __m512i words =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(next)));
  next += 2 * __builtin_popcount(wants);
  return _mm512_mask_or_epi32(x, wants, _mm512_slli_epi32(x, 16),
                              _mm512_maskz_expand_epi32(wants, words));
}

static std::size_t rans_decode_fast(RansReader& reader, const std::uint32_t* table,
                                    std::size_t count, std::uint8_t* out) {
  __m512i a = _mm512_loadu_si512(reader.states);
  __m512i b = _mm512_loadu_si512(reader.states + 16);
  const std::byte* next = reader.next;
  std::size_t done = 0;
  for (; done < count && reader.end - next >= 4 * static_cast<std::ptrdiff_t>(rans_lanes);
       done += rans_lanes) {
    a = rans_step(a, table, next, out + done);
    b = rans_step(b, table, next, out + done + 16);
  }
  reader.next = next;
  _mm512_storeu_si512(reader.states, a);
  _mm512_storeu_si512(reader.states + 16, b);
  return done;
}

#elif defined(HEADRACE_ISA_AVX2)

/// For each set of lanes that want a word: which of the next words each of them takes.
struct RansExpand {
  std::uint8_t from[256][8];
  constexpr RansExpand() : from() {
    for (std::uint32_t wants = 0; wants < 256; ++wants) {
      std::uint8_t word = 0;
      for (std::uint32_t lane = 0; lane < 8; ++lane) {
        from[wants][lane] = word;
        if ((wants >> lane & 1U) != 0) ++word;
      }
    }
  }
};
static constexpr RansExpand rans_expand;

HEADRACE_INLINE __m256i rans_step(__m256i x, const std::uint32_t* table, const std::byte*& next,
                                  std::uint8_t* out) {
  const __m256i low = _mm256_set1_epi32(rans_slots - 1);
  const __m256i entry =
      _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), _mm256_and_si256(x, low), 4);
  const __m256i symbols = _mm256_srli_epi32(entry, 24);
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(symbols), _mm256_extracti128_si256(symbols, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(halves, halves));
  x = _mm256_add_epi32(
      _mm256_mullo_epi32(_mm256_and_si256(entry, low), _mm256_srli_epi32(x, rans_bits)),
      _mm256_and_si256(_mm256_srli_epi32(entry, rans_bits), low));
  // The upper half of a state is zero exactly when it is below 2^16.
  const __m256i wants = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(wants)));
  const __m256i words =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next)));
  const __m256i from = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rans_expand.from[mask])));
  next += 2 * __builtin_popcount(mask);
  const __m256i filled =
      _mm256_or_si256(_mm256_slli_epi32(x, 16), _mm256_permutevar8x32_epi32(words, from));
  return _mm256_blendv_epi8(x, filled, wants);
}

static std::size_t rans_decode_fast(RansReader& reader, const std::uint32_t* table,
                                    std::size_t count, std::uint8_t* out) {
  __m256i x[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(reader.states + 8 * i));
  }
  const std::byte* next = reader.next;
  std::size_t done = 0;
  for (; done < count && reader.end - next >= 4 * static_cast<std::ptrdiff_t>(rans_lanes);
       done += rans_lanes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = rans_step(x[i], table, next, out + done + 8 * i);
  }
  reader.next = next;
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reader.states + 8 * i), x[i]);
  }
  return done;
}

#else

static std::size_t rans_decode_fast(RansReader&, const std::uint32_t*, std::size_t, std::uint8_t*) {
  return 0;
}

#endif

static bool rans_decode(RansReader& reader, const std::uint32_t* table, std::size_t count,
                        std::uint8_t* out) {
  // Vectors read ahead of what they take; the last rounds go word by word.
  for (std::size_t done = rans_decode_fast(reader, table, count, out); done < count;
       done += rans_lanes) {
    if (!rans_decode_round(reader, table, out + done)) return false;
  }
  return true;
}

/// Of the dims in the line of keys that value `first` of a tile of `count` values begins.
HEADRACE_INLINE const std::uint16_t* line_references(const std::uint16_t* references,
                                                     std::size_t first, std::size_t count) {
  return references + first % (count / I16Kv::tile_groups) / group_tokens;
}

/// Bits of a value in an order in which the upper byte is worth coding and the lower one is not.
static void split_halves(HalfForm form, const std::uint16_t* values, std::size_t count,
                         const std::uint16_t* references, std::uint8_t* upper,
                         std::uint8_t* lower) {
  const auto split = [&](auto turned) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t value = turned(i);
      upper[i] = static_cast<std::uint8_t>(value >> 8);
      lower[i] = static_cast<std::uint8_t>(value);
    }
  };
  switch (form) {
    case HalfForm::as_is:
      return split([&](std::size_t i) { return values[i]; });
    case HalfForm::sign_last:
      return split([&](std::size_t i) {
        return static_cast<std::uint16_t>(values[i] << 1 | values[i] >> 15);
      });
    case HalfForm::lines_less_reference:
      for (std::size_t first = 0; first < count; first += 2 * lanes) {
        const std::uint16_t* dims = line_references(references, first, count);
        std::uint16_t row[2 * lanes];
        for (std::size_t i = 0; i < 2 * lanes; ++i) {
          row[i] =
              static_cast<std::uint16_t>(values[first + i] - dims[i % I16Kv::line_dims] + 128U);
        }
        for (std::size_t i = 0; i < 2 * lanes; ++i) {
          upper[first + i] = static_cast<std::uint8_t>(row[i] >> 8);
          lower[first + i] = static_cast<std::uint8_t>(row[i]);
        }
      }
      return;
  }
}

static void join_halves(HalfForm form, const std::uint8_t* upper, const std::uint8_t* lower,
                        std::size_t count, const std::uint16_t* references, std::uint16_t* values) {
  const auto value_of = [&](std::size_t i) {
    return static_cast<std::uint16_t>(upper[i] << 8 | lower[i]);
  };
  switch (form) {
    case HalfForm::as_is:
      for (std::size_t i = 0; i < count; ++i) values[i] = value_of(i);
      return;
    case HalfForm::sign_last:
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint16_t value = value_of(i);
        values[i] = static_cast<std::uint16_t>(value >> 1 | value << 15);
      }
      return;
    case HalfForm::lines_less_reference:
      for (std::size_t first = 0; first < count; first += 2 * lanes) {
        const std::uint16_t* dims = line_references(references, first, count);
        std::uint16_t row[2 * lanes];
        for (std::size_t i = 0; i < 2 * lanes; ++i) {
          row[i] = static_cast<std::uint16_t>(dims[i % I16Kv::line_dims] - 128U);
        }
        for (std::size_t i = 0; i < 2 * lanes; ++i) {
          values[first + i] = static_cast<std::uint16_t>(value_of(first + i) + row[i]);
        }
      }
      return;
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
