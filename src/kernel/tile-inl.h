// Tiles of a page as f32 [dim][16 tokens], for K and V alike, and their quantised forms
// (codec/quantized_codec.cc). Everything is elementwise with the tokens in the lanes, without fused
// operations, so that every instruction set gives the same bits.
//   8 bits: per block of 32 dims an f16 scale of each token, the nearest to largest / 127; then the
//     bytes [dim][16 tokens]
//   4 bits: per block an 8-bit scale of each token, then bytes [half of the dims][16 tokens], which
//     hold dim d in the lower four bits and dim d + half in the upper ones;
//     value = (nibble - 7.5) * scale
//   levels: signed bytes times steps that the codec chooses
// A block at the end has 16 dims where head_dim is no multiple of 32.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// All that a code can mean.
struct TileScales {
  float value[256];
  float inverse[256];
  constexpr TileScales() : value(), inverse() {
    for (std::uint32_t code = 1; code < 256; ++code) {
      value[code] = tile_scale(code);
      inverse[code] = 1.0F / value[code];
    }
  }
};
static constexpr TileScales tile_scales;

/// The least code whose scale is not below `x`, or the largest there is.
HEADRACE_INLINE std::uint32_t tile_scale_not_below(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint32_t steps = (bits + 0xFFFFFU) >> 20;  // of an eighth of a power of two
  constexpr std::uint32_t steps_at_zero = (127U - 18U) << 3;
  if (steps <= steps_at_zero) return 0;
  return steps - steps_at_zero < 255 ? steps - steps_at_zero : 255;
}

HEADRACE_INLINE std::uint32_t tile_block_dims(std::uint32_t head_dim, std::uint32_t first) {
  return head_dim - first < quant_block ? head_dim - first : quant_block;
}

// K is in this order already, up to pairs and fours, but for i16. V has the dims in the lanes.

HEADRACE_INLINE float float_of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

template <typename Row>
HEADRACE_INLINE void load_rows(std::uint32_t head_dim, float* x, Row row) {
  HEADRACE_FOR_LANES(d, head_dim) {
    F rows[lanes];
    for (std::uint32_t t = 0; t < lanes; ++t) rows[t] = row(t, d);
    transpose(rows);
    for (std::uint32_t i = 0; i < lanes; ++i) store(x + std::size_t{d + i} * lanes, rows[i]);
  }
}
template <typename Write>
HEADRACE_INLINE void store_rows(std::uint32_t head_dim, const float* x, Write write) {
  HEADRACE_FOR_LANES(d, head_dim) {
    F rows[lanes];
    for (std::uint32_t i = 0; i < lanes; ++i) rows[i] = load(x + std::size_t{d + i} * lanes);
    transpose(rows);
    for (std::uint32_t t = 0; t < lanes; ++t) write(t, d, rows[t]);
  }
}

template <KvType Type>
static void load_float_tile(const PageHead& page, std::uint32_t tile, float* k, float* v) {
  const std::size_t first = std::size_t{tile} * lanes * page.head_dim;
  for (std::uint32_t d = 0; d < page.head_dim; ++d) {
    store(k + std::size_t{d} * lanes, Element<Type>::read(page.k, first + std::size_t{d} * lanes));
  }
  load_rows(page.head_dim, v, [&](std::uint32_t t, std::uint32_t d) {
    return Element<Type>::read(page.v, first + std::size_t{t} * page.head_dim + d);
  });
}
template <KvType Type>
static void store_float_tile(const float* k, const float* v, std::uint32_t tile,
                             const PageHead& page) {
  using Raw = typename Element<Type>::Raw;
  const std::size_t first = std::size_t{tile} * lanes * page.head_dim;
  for (std::uint32_t d = 0; d < page.head_dim; ++d) {
    Element<Type>::write(reinterpret_cast<Raw*>(page.k) + first + std::size_t{d} * lanes,
                         load(k + std::size_t{d} * lanes));
  }
  store_rows(page.head_dim, v, [&](std::uint32_t t, std::uint32_t d, F row) {
    Element<Type>::write(
        reinterpret_cast<Raw*>(page.v) + first + std::size_t{t} * page.head_dim + d, row);
  });
}

/// V of bf16 and i16: [token / 2][dim][2].
static void load_bf16_values(const PageHead& page, std::uint32_t tile, float* v) {
  const auto* values = reinterpret_cast<const std::uint32_t*>(page.v) +
                       std::size_t{tile} * (lanes / 2) * page.head_dim;
  load_rows(page.head_dim, v, [&](std::uint32_t t, std::uint32_t d) {
    const std::uint32_t* pairs = values + std::size_t{t / 2} * page.head_dim + d;
    alignas(64) float row[lanes];
    for (std::uint32_t i = 0; i < lanes; ++i) {
      row[i] = float_of_bits(t % 2 == 0 ? pairs[i] << 16 : pairs[i] & 0xFFFF'0000U);
    }
    return load(row);
  });
}
static void store_bf16_values(const float* v, std::uint32_t tile, const PageHead& page) {
  auto* values =
      reinterpret_cast<std::uint32_t*>(page.v) + std::size_t{tile} * (lanes / 2) * page.head_dim;
  std::uint16_t even[lanes] = {};
  store_rows(page.head_dim, v, [&](std::uint32_t t, std::uint32_t d, F row) {
    if (t % 2 == 0) return store_bf16(even, row);
    std::uint16_t odd[lanes];
    store_bf16(odd, row);
    std::uint32_t* pairs = values + std::size_t{t / 2} * page.head_dim + d;
    for (std::uint32_t i = 0; i < lanes; ++i) pairs[i] = even[i] | std::uint32_t{odd[i]} << 16;
  });
}

static void load_bf16_tile(const PageHead& page, std::uint32_t tile, float* k, float* v) {
  const auto* keys = reinterpret_cast<const std::uint32_t*>(page.k) +
                     std::size_t{tile} * (lanes / 2) * page.head_dim;
  for (std::uint32_t d = 0; d < page.head_dim; d += 2, keys += lanes, k += 2 * lanes) {
    for (std::uint32_t i = 0; i < lanes; ++i) {
      k[i] = float_of_bits(keys[i] << 16);
      k[lanes + i] = float_of_bits(keys[i] & 0xFFFF'0000U);
    }
  }
  load_bf16_values(page, tile, v);
}
static void store_bf16_tile(const float* k, const float* v, std::uint32_t tile,
                            const PageHead& page) {
  auto* keys =
      reinterpret_cast<std::uint32_t*>(page.k) + std::size_t{tile} * (lanes / 2) * page.head_dim;
  for (std::uint32_t d = 0; d < page.head_dim; d += 2, keys += lanes, k += 2 * lanes) {
    std::uint16_t first[lanes];
    std::uint16_t second[lanes];
    store_bf16(first, load(k));
    store_bf16(second, load(k + lanes));
    for (std::uint32_t i = 0; i < lanes; ++i) keys[i] = first[i] | std::uint32_t{second[i]} << 16;
  }
  store_bf16_values(v, tile, page);
}

/// 16 dims of a token of i16 keys, from `d` on: half of them in each of two lines.
HEADRACE_INLINE std::int16_t* i16_row(const PageHead& page, std::uint32_t tile, std::uint32_t t,
                                      std::uint32_t d) {
  return reinterpret_cast<std::int16_t*>(page.k) +
         (std::size_t{tile} * lanes + t / group_tokens * group_tokens) * page.head_dim +
         std::size_t{d} * group_tokens + t % group_tokens * I16Kv::line_dims;
}
static constexpr std::size_t i16_line_values = group_tokens * I16Kv::line_dims;

static void load_i16_tile(const PageHead& page, std::uint32_t tile, float* k, float* v) {
  const std::uint16_t* scales = I16Kv::scales_of(page) + std::size_t{tile} * lanes;
  load_rows(page.head_dim, k, [&](std::uint32_t t, std::uint32_t d) {
    const std::int16_t* at = i16_row(page, tile, t, d);
    alignas(64) float row[lanes];
    for (std::uint32_t i = 0; i < I16Kv::line_dims; ++i) {
      row[i] = static_cast<float>(at[i]);
      row[I16Kv::line_dims + i] = static_cast<float>(at[i16_line_values + i]);
    }
    return mul(load(row), set1(bf16_value(scales[t])));
  });
  load_bf16_values(page, tile, v);
}
static void store_i16_tile(const float* k, const float* v, std::uint32_t tile,
                           const PageHead& page) {
  F largest = zero();
  for (std::uint32_t d = 0; d < page.head_dim; ++d) {
    largest = max(largest, abs(load(k + std::size_t{d} * lanes)));
  }
  alignas(64) float inverse[lanes];
  store(inverse, largest);
  std::uint16_t* scales = I16Kv::scales_of(page) + std::size_t{tile} * lanes;
  for (std::uint32_t i = 0; i < lanes; ++i) {
    scales[i] = bf16_not_below(inverse[i] / I16Kv::largest_value);
    const float step = bf16_value(scales[i]);
    inverse[i] = step > 0x1p-120F ? 1.0F / step : 0.0F;
  }
  store_rows(page.head_dim, k, [&](std::uint32_t t, std::uint32_t d, F row) {
    std::int16_t values[lanes];
    store_int16(values, mul(row, set1(inverse[t])));
    std::int16_t* at = i16_row(page, tile, t, d);
    std::memcpy(at, values, sizeof values / 2);
    std::memcpy(at + i16_line_values, values + I16Kv::line_dims, sizeof values / 2);
  });
  store_bf16_values(v, tile, page);
}

/// Scales of a block of 8 bits: what is stored and what values are multiplied with.
struct Scales8 {
  std::uint16_t halves[lanes];
  F inverse;
};
HEADRACE_INLINE Scales8 scales8_of(const float* x, std::uint32_t dims) {
  F largest = zero();
  for (std::uint32_t d = 0; d < dims; ++d) {
    largest = max(largest, abs(load(x + std::size_t{d} * lanes)));
  }
  Scales8 scales;
  store_f16(scales.halves, div(largest, set1(127.0F)));
  alignas(64) float inverse[lanes];
  store(inverse, load_f16(scales.halves));
  for (std::uint32_t i = 0; i < lanes; ++i) {
    // As for rows of q8: a scale that f16 rounds to nothing, or to infinity, keeps nothing.
    const bool usable = inverse[i] > 0.0F && inverse[i] < 65520.0F;
    inverse[i] = usable ? 1.0F / inverse[i] : 0.0F;
    if (!usable) scales.halves[i] = 0;
  }
  scales.inverse = load(inverse);
  return scales;
}
HEADRACE_INLINE void store_bytes8(const float* x, F inverse, std::int8_t* out) {
  const F limit = set1(127.0F);
  store_int8(out, max(min(mul(load(x), inverse), limit), sub(zero(), limit)));
}

static void load_q8_tile(const PageHead& page, std::uint32_t tile, float* k, float* v) {
  const std::uint32_t head_dim = page.head_dim;
  std::byte* k_tile = page.k + tile * Q8Kv::tile_bytes(head_dim);
  std::byte* v_tile = page.v + tile * Q8Kv::tile_bytes(head_dim);
  const auto* keys = reinterpret_cast<const std::uint8_t*>(k_tile);
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    std::int8_t row[lanes];
    for (std::uint32_t t = 0; t < lanes; ++t) {
      row[t] = static_cast<std::int8_t>(keys[(std::size_t{d / 4} * lanes + t) * 4 + d % 4] - 128);
    }
    store(k + std::size_t{d} * lanes,
          mul(load_int8(row), load_f16(Q8Kv::scales_of(k_tile, head_dim, d))));
  }
  load_rows(head_dim, v, [&](std::uint32_t t, std::uint32_t d) {
    return load_int8(reinterpret_cast<const std::int8_t*>(v_tile) + std::size_t{t} * head_dim + d);
  });
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    float* row = v + std::size_t{d} * lanes;
    store(row, mul(load(row), load_f16(Q8Kv::scales_of(v_tile, head_dim, d))));
  }
}
static void store_q8_tile(const float* k, const float* v, std::uint32_t tile,
                          const PageHead& page) {
  const std::uint32_t head_dim = page.head_dim;
  std::byte* k_tile = page.k + tile * Q8Kv::tile_bytes(head_dim);
  std::byte* v_tile = page.v + tile * Q8Kv::tile_bytes(head_dim);
  for (std::uint32_t d = 0; d < head_dim; d += quant_block) {
    const Scales8 key = scales8_of(k + std::size_t{d} * lanes, quant_block);
    const Scales8 value = scales8_of(v + std::size_t{d} * lanes, quant_block);
    std::memcpy(Q8Kv::scales_of(k_tile, head_dim, d), key.halves, sizeof key.halves);
    std::memcpy(Q8Kv::scales_of(v_tile, head_dim, d), value.halves, sizeof value.halves);
    for (std::uint32_t i = d; i < d + quant_block; ++i) {
      std::int8_t key_row[lanes];
      std::int8_t value_row[lanes];
      store_bytes8(k + std::size_t{i} * lanes, key.inverse, key_row);
      store_bytes8(v + std::size_t{i} * lanes, value.inverse, value_row);
      for (std::uint32_t t = 0; t < lanes; ++t) {
        reinterpret_cast<std::uint8_t*>(k_tile)[(std::size_t{i / 4} * lanes + t) * 4 + i % 4] =
            static_cast<std::uint8_t>(key_row[t] + 128);
        reinterpret_cast<std::int8_t*>(v_tile)[std::size_t{t} * head_dim + i] = value_row[t];
      }
    }
  }
}

static void load_tile(const PageHead& page, std::uint32_t tile, float* k, float* v) {
  switch (page.type) {
    case KvType::f32:
      return load_float_tile<KvType::f32>(page, tile, k, v);
    case KvType::f16:
      return load_float_tile<KvType::f16>(page, tile, k, v);
    case KvType::bf16:
      return load_bf16_tile(page, tile, k, v);
    case KvType::i16:
      return load_i16_tile(page, tile, k, v);
    case KvType::q8:
      return load_q8_tile(page, tile, k, v);
  }
}

static void store_tile(const float* k, const float* v, std::uint32_t tile, const PageHead& page) {
  switch (page.type) {
    case KvType::f32:
      return store_float_tile<KvType::f32>(k, v, tile, page);
    case KvType::f16:
      return store_float_tile<KvType::f16>(k, v, tile, page);
    case KvType::bf16:
      return store_bf16_tile(k, v, tile, page);
    case KvType::i16:
      return store_i16_tile(k, v, tile, page);
    case KvType::q8:
      return store_q8_tile(k, v, tile, page);
  }
}

/// The means as f16 of what was summed over `tokens` tokens in `sums` [dim][16].
static void tile_means(const float* sums, std::uint32_t tokens, std::uint32_t head_dim,
                       std::uint16_t* means) {
  HEADRACE_FOR_LANES(d, head_dim) {
    alignas(64) float row[lanes];
    for (std::uint32_t i = 0; i < lanes; ++i) {
      row[i] = reduce_add(load(sums + std::size_t{d + i} * lanes)) / static_cast<float>(tokens);
    }
    store_f16(means + d, load(row));
  }
}

/// x += sign * mean of its dim.
static void shift_tile(float* x, const std::uint16_t* means, float sign, std::uint32_t head_dim) {
  HEADRACE_FOR_LANES(d, head_dim) {
    alignas(64) float row[lanes];
    store(row, mul(load_f16(means + d), set1(sign)));
    for (std::uint32_t i = 0; i < lanes; ++i) {
      float* at = x + std::size_t{d + i} * lanes;
      store(at, add(load(at), set1(row[i])));
    }
  }
}

/// The Hadamard transform of each `size` dims, a power of two, times `factor`.
static void rotate_tile(float* x, std::uint32_t size, float factor, std::uint32_t head_dim) {
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    store(x + std::size_t{d} * lanes, mul(load(x + std::size_t{d} * lanes), set1(factor)));
  }
  for (std::uint32_t step = 1; step < size; step *= 2) {
    for (std::uint32_t first = 0; first < head_dim; first += 2 * step) {
      for (std::uint32_t d = first; d < first + step; ++d) {
        float* a = x + std::size_t{d} * lanes;
        float* b = a + std::size_t{step} * lanes;
        const F left = load(a);
        const F right = load(b);
        store(a, add(left, right));
        store(b, sub(left, right));
      }
    }
  }
}

static std::size_t quantize_tile_8(const float* x, std::uint32_t head_dim, std::byte* out) {
  std::byte* at = out;
  for (std::uint32_t d = 0; d < head_dim; d += quant_block) {
    const std::uint32_t dims = tile_block_dims(head_dim, d);
    const float* block = x + std::size_t{d} * lanes;
    const Scales8 scales = scales8_of(block, dims);
    std::memcpy(at, scales.halves, sizeof scales.halves);
    at += sizeof scales.halves;
    for (std::uint32_t i = 0; i < dims; ++i, at += lanes) {
      store_bytes8(block + std::size_t{i} * lanes, scales.inverse,
                   reinterpret_cast<std::int8_t*>(at));
    }
  }
  return static_cast<std::size_t>(at - out);
}

static void restore_tile_8(const std::byte* in, std::uint32_t head_dim, float* x) {
  for (std::uint32_t d = 0; d < head_dim; d += quant_block) {
    std::uint16_t halves[lanes];
    std::memcpy(halves, in, sizeof halves);
    in += sizeof halves;
    const F scales = load_f16(halves);
    for (std::uint32_t i = d; i < d + tile_block_dims(head_dim, d); ++i, in += lanes) {
      store(x + std::size_t{i} * lanes,
            mul(load_int8(reinterpret_cast<const std::int8_t*>(in)), scales));
    }
  }
}

/// x / scale as a number from 0 to 15.
HEADRACE_INLINE F nibble_of(F x, F inverse) {
  return max(min(round_nearest(add(mul(x, inverse), set1(7.5F))), set1(15.0F)), zero());
}

/// Scales that are tried: the one that reaches the largest value, and smaller ones.
constexpr std::uint32_t tile_scale_trials = 5;

/// For each token the scale with the least squared error.
HEADRACE_INLINE void scales4_of(const float* x, std::uint32_t dims, std::uint8_t* codes) {
  F largest = zero();
  for (std::uint32_t d = 0; d < dims; ++d) {
    largest = max(largest, abs(load(x + std::size_t{d} * lanes)));
  }
  alignas(64) float reach[lanes];
  store(reach, largest);
  std::uint32_t widest[lanes];
  for (std::uint32_t i = 0; i < lanes; ++i) widest[i] = tile_scale_not_below(reach[i] / 7.5F);
  alignas(64) float scale[tile_scale_trials][lanes];
  alignas(64) float inverse[tile_scale_trials][lanes];
  F scales[tile_scale_trials];
  F inverses[tile_scale_trials];
  F errors[tile_scale_trials];
  for (std::uint32_t trial = 0; trial < tile_scale_trials; ++trial) {
    for (std::uint32_t i = 0; i < lanes; ++i) {
      const std::uint32_t code = widest[i] > trial ? widest[i] - trial : widest[i];
      scale[trial][i] = tile_scales.value[code];
      inverse[trial][i] = tile_scales.inverse[code];
    }
    scales[trial] = load(scale[trial]);
    inverses[trial] = load(inverse[trial]);
    errors[trial] = zero();
  }
  for (std::uint32_t d = 0; d < dims; ++d) {
    const F value = load(x + std::size_t{d} * lanes);
#pragma GCC unroll 5
    for (std::uint32_t trial = 0; trial < tile_scale_trials; ++trial) {
      const F nibble = nibble_of(value, inverses[trial]);
      const F error = sub(mul(sub(nibble, set1(7.5F)), scales[trial]), value);
      errors[trial] = add(errors[trial], mul(error, error));
    }
  }
  alignas(64) float least[lanes];
  store(least, errors[0]);
  for (std::uint32_t i = 0; i < lanes; ++i) codes[i] = static_cast<std::uint8_t>(widest[i]);
  for (std::uint32_t trial = 1; trial < tile_scale_trials; ++trial) {
    alignas(64) float error[lanes];
    store(error, errors[trial]);
    for (std::uint32_t i = 0; i < lanes; ++i) {
      if (!(error[i] < least[i])) continue;
      least[i] = error[i];
      codes[i] = static_cast<std::uint8_t>(widest[i] - trial);
    }
  }
}

static std::size_t quantize_tile_4(const float* x, std::uint32_t head_dim, std::byte* out) {
  std::byte* at = out;
  for (std::uint32_t d = 0; d < head_dim; d += quant_block) {
    const std::uint32_t dims = tile_block_dims(head_dim, d);
    const float* block = x + std::size_t{d} * lanes;
    std::uint8_t codes[lanes];
    scales4_of(block, dims, codes);
    std::memcpy(at, codes, sizeof codes);
    at += sizeof codes;
    alignas(64) float inverse[lanes];
    for (std::uint32_t i = 0; i < lanes; ++i) inverse[i] = tile_scales.inverse[codes[i]];
    const std::size_t half = std::size_t{dims / 2} * lanes;
    for (std::size_t i = 0; i < half; i += lanes, at += lanes) {
      const F lower = nibble_of(load(block + i), load(inverse));
      const F upper = nibble_of(load(block + half + i), load(inverse));
      // As a signed byte: 128 less than the unsigned one.
      store_int8(reinterpret_cast<std::int8_t*>(at),
                 add(lower, mul(sub(upper, set1(8.0F)), set1(16.0F))));
    }
  }
  return static_cast<std::size_t>(at - out);
}

static void restore_tile_4(const std::byte* in, std::uint32_t head_dim, float* x) {
  for (std::uint32_t d = 0; d < head_dim; d += quant_block) {
    const std::uint32_t dims = tile_block_dims(head_dim, d);
    alignas(64) float values[lanes];
    for (std::uint32_t i = 0; i < lanes; ++i) {
      values[i] = tile_scales.value[static_cast<std::uint8_t>(in[i])];
    }
    in += lanes;
    const F scales = load(values);
    float* block = x + std::size_t{d} * lanes;
    const std::size_t half = std::size_t{dims / 2} * lanes;
    for (std::size_t i = 0; i < half; i += lanes, in += lanes) {
      // byte = lower + 16 * (upper - 8); what is rounded is within 15 / 32 of a whole number.
      const F byte = load_int8(reinterpret_cast<const std::int8_t*>(in));
      const F upper = round_nearest(sub(mul(byte, set1(0.0625F)), set1(0.46875F)));
      const F lower = sub(byte, mul(upper, set1(16.0F)));
      store(block + i, mul(sub(lower, set1(7.5F)), scales));
      store(block + half + i, mul(add(upper, set1(0.5F)), scales));
    }
  }
}

static void quantize_levels(const float* x, TileFactors factors, std::uint32_t head_dim,
                            std::size_t stride, std::int8_t* levels) {
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    store_bytes8(x + std::size_t{d} * lanes, load(factors.first + d * factors.stride),
                 levels + d * stride);
  }
}

static void restore_levels(const std::int8_t* levels, std::size_t stride, TileFactors factors,
                           std::uint32_t head_dim, float* x) {
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    store(x + std::size_t{d} * lanes,
          mul(load_int8(levels + d * stride), load(factors.first + d * factors.stride)));
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
