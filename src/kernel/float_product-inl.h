// Matrix products over float weights: f32, f16, bf16, and what only ggml can read and decodes to
// f32. One definition, c = fma(a[k], w[k], c) over k in order, and two ways to the same bits: a
// panel for many rows, and weights in the file's layout for a few.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

template <WeightFormat Format>
inline constexpr std::size_t value_bytes = Format == WeightFormat::f32 ? 4 : 2;

/// 16 values of one column.
template <WeightFormat Format>
HEADRACE_INLINE F load_values(const std::byte* p) {
  if constexpr (Format == WeightFormat::f32) return load(reinterpret_cast<const float*>(p));
  const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
  return Format == WeightFormat::f16 ? load_f16(halves) : load_bf16(halves);
}

/// Where 16 columns begin. Lanes behind the last column repeat it.
using ColumnStarts = const std::byte* [lanes];
HEADRACE_INLINE void find_columns(const WeightRows& weights, std::uint32_t first,
                                  std::uint32_t columns, ColumnStarts& out) {
  for (std::uint32_t i = 0; i < lanes; ++i) {
    const std::size_t column = first + (i < columns ? i : columns - 1);
    out[i] = weights.data + column * weights.row_bytes;
  }
}

/// tile[i] = value k + i of each of 16 columns.
template <WeightFormat Format>
HEADRACE_INLINE void load_tile(const ColumnStarts& columns, std::uint32_t k, F (&tile)[lanes]) {
#pragma GCC unroll 16
  for (std::uint32_t i = 0; i < lanes; ++i) {
    tile[i] = load_values<Format>(columns[i] + k * value_bytes<Format>);
  }
  transpose(tile);
}

template <WeightFormat Format>
static void unpack_float_panel(const WeightRows& weights, std::uint32_t first,
                               std::uint32_t columns, float* panel) {
  for (std::uint32_t c = 0; c < columns; c += lanes) {
    ColumnStarts starts;
    find_columns(weights, first + c, columns - c, starts);
    for (std::uint32_t k = 0; k < weights.width; k += lanes) {
      F tile[lanes];
      load_tile<Format>(starts, k, tile);
#pragma GCC unroll 16
      for (std::uint32_t i = 0; i < lanes; ++i) {
        store(panel + (std::size_t{k} + i) * panel_columns + c, tile[i]);
      }
    }
  }
}

/// Writes `Rows` rows of sums, of which `columns` columns are wanted.
template <int Rows, int Groups>
HEADRACE_INLINE void write_sums(const F (&sums)[Rows][Groups], std::uint32_t columns,
                                const OutputRows& out) {
  for (int i = 0; i < Rows; ++i) {
    float* row = out.data + static_cast<std::size_t>(i) * out.stride;
    for (std::uint32_t j = 0; j < Groups && j * lanes < columns; ++j) {
      write_columns(row + j * lanes, sums[i][j], columns - j * lanes, out.accumulate);
    }
  }
}

template <WeightFormat Format, int Rows, int Groups>
static void few_rows_float_tile(const WeightRows& weights, std::uint32_t first,
                                std::uint32_t columns, const float* rows, OutputRows out) {
  const std::uint32_t width = weights.width;
  // The columns after these come next: 16 short streams at once are too much for the hardware to
  // foresee.
  constexpr std::size_t column_bytes = lanes * value_bytes<Format>;
  const std::byte* ahead = weights.data + (first + Groups * lanes) * weights.row_bytes;
  ColumnStarts starts[Groups];
  F sums[Rows][Groups];
  for (std::uint32_t j = 0; j < Groups; ++j) {
    find_columns(weights, first + j * lanes, columns - j * lanes, starts[j]);
    for (int r = 0; r < Rows; ++r) sums[r][j] = zero();
  }
  for (std::uint32_t k = 0; k < width; k += lanes) {
#pragma GCC unroll 2
    for (int j = 0; j < Groups; ++j) {
      const std::byte* at = ahead + (k + static_cast<std::size_t>(j) * width) * column_bytes;
#pragma GCC unroll 16
      for (std::size_t line = 0; line < lanes * column_bytes; line += 64) {
        __builtin_prefetch(at + line);
      }
      F tile[lanes];
      load_tile<Format>(starts[j], k, tile);
#pragma GCC unroll 16
      for (std::uint32_t i = 0; i < lanes; ++i) {
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const F a = set1(rows[static_cast<std::size_t>(r) * width + k + i]);
          sums[r][j] = fma(a, tile[i], sums[r][j]);
        }
      }
    }
  }
  write_sums(sums, columns, out);
}

/// One row takes two groups of columns at a time: two sums hide the time of an addition.
template <WeightFormat Format>
static void float_few_rows_product(const WeightRows& weights, std::uint32_t first,
                                   std::uint32_t columns, const float* rows,
                                   std::uint32_t row_count, OutputRows out) {
  constexpr int tile_rows = 4;
  for (std::uint32_t row = 0; row < row_count; row += tile_rows) {
    with_rows<tile_rows>(row_count - row, [&]<int Rows>() {
      const float* from = rows + std::size_t{row} * weights.width;
      const OutputRows to = from_row(out, row);
      std::uint32_t c = 0;
      const auto tile = [&]<int Groups>() {
        few_rows_float_tile<Format, Rows, Groups>(weights, first + c, columns - c, from,
                                                  {to.data + c, to.stride, to.accumulate});
        c += Groups * lanes;
      };
      if constexpr (Rows == 1) {
        while (columns - c > lanes && c < columns) tile.template operator()<2>();
      }
      while (c < columns) tile.template operator()<1>();  // NOLINT(bugprone-infinite-loop): moves c
    });
  }
}

/// Calls `f.template operator()<Format>()` for a runtime float format.
template <typename Callable>
HEADRACE_INLINE void with_float_format(WeightFormat format, Callable f) {
  switch (format) {
    case WeightFormat::f32:
      return f.template operator()<WeightFormat::f32>();
    case WeightFormat::f16:
      return f.template operator()<WeightFormat::f16>();
    case WeightFormat::bf16:
      return f.template operator()<WeightFormat::bf16>();
    default:
      return;  // not a float format
  }
}

static void unpack_float_panel_any(const WeightRows& weights, std::uint32_t first,
                                   std::uint32_t columns, float* panel) {
  with_float_format(weights.format, [&]<WeightFormat Format>() {
    unpack_float_panel<Format>(weights, first, columns, panel);
  });
}

static void float_few_rows_product_any(const WeightRows& weights, std::uint32_t first,
                                       std::uint32_t columns, const float* rows,
                                       std::uint32_t row_count, OutputRows out) {
  with_float_format(weights.format, [&]<WeightFormat Format>() {
    float_few_rows_product<Format>(weights, first, columns, rows, row_count, out);
  });
}

// Sums and weights of a tile fit the registers: 6 x 3 and 3 of 32 with AVX-512, 6 x 1 and 1 of 8
// (two AVX2 registers each) or of 8 (four of NEON).
inline constexpr int float_rows = 6;
#if defined(HEADRACE_ISA_AVX512)
inline constexpr int float_groups = 3;
#else
inline constexpr int float_groups = 1;
#endif

template <int Rows>
static void float_tile(const float* panel, std::uint32_t width, std::uint32_t columns,
                       const float* rows, OutputRows out) {
  F sums[Rows][float_groups];
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < float_groups; ++j) sums[i][j] = zero();
  }
  for (std::uint32_t k = 0; k < width; ++k) {
    F w[float_groups];
#pragma GCC unroll 3
    for (std::uint32_t j = 0; j < float_groups; ++j)
      w[j] = load(panel + std::size_t{k} * panel_columns + j * lanes);
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const F a = set1(rows[static_cast<std::size_t>(i) * width + k]);
#pragma GCC unroll 3
      for (int j = 0; j < float_groups; ++j) sums[i][j] = fma(a, w[j], sums[i][j]);
    }
  }
  write_sums(sums, columns, out);
}

static void float_panel_product(const float* panel, std::uint32_t width, std::uint32_t columns,
                                const float* rows, std::uint32_t row_count, OutputRows out) {
  constexpr std::uint32_t tile_columns = float_groups * lanes;
  for (std::uint32_t c = 0; c < columns; c += tile_columns) {
    for (std::uint32_t row = 0; row < row_count; row += float_rows) {
      OutputRows to = from_row(out, row);
      to.data += c;
      with_rows<float_rows>(row_count - row, [&]<int Rows>() {
        float_tile<Rows>(panel + c, width, columns - c, rows + std::size_t{row} * width, to);
      });
    }
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
