// Matrix products over quantised weights: the many-row kernel over an unpacked panel. The direct
// kernel for one or a few rows is in row_product-inl.h and gives the same bits.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

inline constexpr std::uint32_t groups = panel_columns / lanes;

/// The numeric definition of an integer format: what one block adds to one output. `dots` are those
/// of the block, or of its halves, with the offset; `scales` likewise.
template <WeightFormat Format>
HEADRACE_INLINE F add_block(F sum, const I (&dots)[BlockTraits<Format>::scales],
                            const F (&scales)[BlockTraits<Format>::scales], F minimum,
                            float activation_scale, float activation_scaled_sum) {
  using Traits = BlockTraits<Format>;
  for (std::size_t i = 0; i < Traits::scales; ++i) {
    sum = fma(to_float(dots[i]), mul(scales[i], set1(activation_scale)), sum);
  }
  if constexpr (Traits::has_minimum) sum = fma(minimum, set1(activation_scaled_sum), sum);
  return sum;
}

/// What the dot product of part `i` of block `b` of a row begins with, so that weights count from
/// their offset.
template <WeightFormat Format>
HEADRACE_INLINE std::int32_t offset_dot(const QuantizedRows& row, std::uint32_t b, std::size_t i) {
  using Traits = BlockTraits<Format>;
  if constexpr (Traits::offset == 0) return 0;
  const std::int32_t* sums = row.sums + std::size_t{b} * 2;
  return -Traits::offset * (Traits::scales == 2 ? sums[i] : sums[0] + sums[1]);
}

/// Calls f.template operator()<N>() for the rows of the next tile: `rows`, at most Max.
template <int Max, typename Callable>
HEADRACE_INLINE void with_rows(std::uint32_t rows, Callable f) {
  if constexpr (Max > 1) {
    if (rows < static_cast<std::uint32_t>(Max)) return with_rows<Max - 1>(rows, f);
  }
  f.template operator()<Max>();
}

HEADRACE_INLINE OutputRows from_row(const OutputRows& out, std::uint32_t row) {
  return {out.data + row * out.stride, out.stride, out.accumulate};
}

HEADRACE_INLINE void write_columns(float* out, F value, std::uint32_t columns, bool accumulate) {
  if (columns >= lanes) {
    store(out, accumulate ? add(load(out), value) : value);
    return;
  }
  alignas(64) float v[lanes];
  store(v, value);
  for (std::uint32_t i = 0; i < columns; ++i) out[i] = accumulate ? out[i] + v[i] : v[i];
}

template <WeightFormat Format>
static void unpack_panel_generic(const WeightRows& weights, std::uint32_t first,
                                 std::uint32_t columns, IntegerPanel out) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = weights.width / quant_block;
  for (std::uint32_t column = 0; column < panel_columns; ++column) {
    const std::uint32_t group = column / lanes;
    const std::uint32_t lane = column % lanes;
    const std::byte* row = weights.data + (first + column) * weights.row_bytes;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      alignas(32) Block block = {};
      if (column < columns) read_block<Format>(row, b, block);
      for (std::size_t i = 0; i < Traits::scales; ++i) {
        out.scales[((b * Traits::scales + i) * groups + group) * lanes + lane] = block.scales[i];
      }
      if constexpr (Traits::has_minimum) {
        out.minimums[(std::size_t{b} * groups + group) * lanes + lane] = block.minimum;
      }
      for (std::uint32_t k = 0; k < 8; ++k) {
        std::memcpy(out.weights + ((std::size_t{b} * 8 + k) * groups + group) * 64 + lane * 4,
                    block.quants + k * 4, 4);
      }
    }
  }
}

template <WeightFormat Format, int Rows, int Groups>
HEADRACE_INLINE void integer_tile(const IntegerPanel& panel, std::uint32_t first_group,
                                  const QuantizedRows& rows, F (&sums)[Rows][Groups]) {
  using Traits = BlockTraits<Format>;
  const std::uint32_t blocks = rows.width / quant_block;
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Groups; ++j) sums[i][j] = zero();
  }
  constexpr int scales = Traits::scales;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    I dots[Rows][Groups][scales];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const QuantizedRows row = rows.from_row(static_cast<std::size_t>(i));
#pragma GCC unroll 2
      for (int part = 0; part < scales; ++part) {
        const I start = set1_i32(offset_dot<Format>(row, b, static_cast<std::size_t>(part)));
#pragma GCC unroll 4
        for (int j = 0; j < Groups; ++j) dots[i][j][part] = start;
      }
    }
    const std::uint8_t* weights = panel.weights + (std::size_t{b} * 8 * groups + first_group) * 64;
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      W w[Groups];
#pragma GCC unroll 4
      for (int j = 0; j < Groups; ++j)
        w[j] = load_weights(weights + (static_cast<std::size_t>(k) * groups + j) * 64);
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        const std::int8_t* a =
            rows.values + static_cast<std::size_t>(i) * rows.width + b * quant_block + k * 4;
#pragma GCC unroll 4
        for (int j = 0; j < Groups; ++j) {
          I& dot = dots[i][j][k * scales / 8];
          dot = dot4<Traits::wide>(dot, w[j], a);
        }
      }
    }
    const std::size_t scales_at = (std::size_t{b} * scales * groups + first_group) * lanes;
    const std::size_t minimums_at = (std::size_t{b} * groups + first_group) * lanes;
#pragma GCC unroll 4
    for (int j = 0; j < Groups; ++j) {
      F scale[scales];
#pragma GCC unroll 2
      for (int part = 0; part < scales; ++part) {
        scale[part] = load(panel.scales + scales_at + (part * groups + j) * lanes);
      }
      const F minimum =
          Traits::has_minimum ? load(panel.minimums + minimums_at + j * lanes) : zero();
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        sums[i][j] =
            add_block<Format>(sums[i][j], dots[i][j], scale, minimum, rows.scales[i * blocks + b],
                              rows.scaled_sums[i * blocks + b]);
      }
    }
  }
}

template <WeightFormat Format, int Rows, int Groups>
static void integer_tile_store(const IntegerPanel& panel, std::uint32_t first_group,
                               std::uint32_t columns, const QuantizedRows& rows, OutputRows out) {
  F sums[Rows][Groups];
  integer_tile<Format, Rows, Groups>(panel, first_group, rows, sums);
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Groups; ++j) {
      const std::uint32_t column = (first_group + static_cast<std::uint32_t>(j)) * lanes;
      if (column >= columns) break;
      write_columns(out.data + static_cast<std::size_t>(i) * out.stride + column, sums[i][j],
                    columns - column, out.accumulate);
    }
  }
}

#if defined(HEADRACE_ISA_AVX512)
// 4 x 3 tiles: 12 sums, 12 dot products and 3 weights fit 32 registers.
inline constexpr int integer_rows = 4;
inline constexpr int integer_groups = 3;
#else
inline constexpr int integer_rows = 2;
inline constexpr int integer_groups = 1;
#endif

template <WeightFormat Format>
static void integer_panel_rows(const IntegerPanel& panel, std::uint32_t columns,
                               const QuantizedRows& rows, std::uint32_t row_count, OutputRows out) {
  for (std::uint32_t group = 0; group * lanes < columns; group += integer_groups) {
    std::uint32_t row = 0;
    for (; row + integer_rows <= row_count; row += integer_rows) {
      integer_tile_store<Format, integer_rows, integer_groups>(
          panel, group, columns, rows.from_row(row), from_row(out, row));
    }
    for (; row < row_count; ++row) {
      integer_tile_store<Format, 1, integer_groups>(panel, group, columns, rows.from_row(row),
                                                    from_row(out, row));
    }
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
