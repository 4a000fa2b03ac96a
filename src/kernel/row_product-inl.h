// One row times weights in the file's own layout (decode): streams the weights once, 16 columns at
// a time, and gives the bits of the panel kernel. AVX-512 and AVX2 read blocks without unpacking,
// and unpack panels with the same loads.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

#if defined(HEADRACE_ISA_AVX512)
#include "kernel/row_product_avx512-inl.h"
#include "kernel/row_product_k_avx512-inl.h"
#elif defined(HEADRACE_ISA_AVX2)
#include "kernel/row_product_avx2-inl.h"
#endif

#if defined(HEADRACE_ISA_AVX512) || defined(HEADRACE_ISA_AVX2)
#define HEADRACE_DIRECT_PRODUCTS

/// Rows that share the loads of a block: their words, sums and the block fit 32 registers.
template <WeightFormat Format>
inline constexpr std::uint32_t direct_rows = BlockTraits<Format>::blocks > 1 ? 2 : 4;

template <WeightFormat Format>
static void few_rows_product_direct(const WeightRows& weights, std::uint32_t first,
                                    std::uint32_t columns, const QuantizedRows& rows,
                                    std::uint32_t row_count, OutputRows out) {
  // Rows inside: those after the first few find the columns in the nearest cache.
  for (std::uint32_t c = 0; c < columns; c += lanes) {
    const std::byte* column = weights.data + (first + c) * weights.row_bytes;
    for (std::uint32_t row = 0; row < row_count; row += direct_rows<Format>) {
      const OutputRows to = from_row(out, row);
      with_rows<direct_rows<Format>>(row_count - row, [&]<int Rows>() {
        F sums[Rows];
        rows_product_16<Format, Rows>(column, weights.row_bytes, rows.from_row(row), sums);
        for (int i = 0; i < Rows; ++i) {
          write_columns(to.data + static_cast<std::size_t>(i) * to.stride + c, sums[i], lanes,
                        to.accumulate);
        }
      });
    }
  }
}

#endif

/// Through panels: any integer format and instruction set.
template <WeightFormat Format>
static void few_rows_product_by_panel(const WeightRows& weights, std::uint32_t first,
                                      std::uint32_t columns, const QuantizedRows& rows,
                                      std::uint32_t row_count, IntegerPanel scratch,
                                      OutputRows out) {
  for (std::uint32_t c = 0; c < columns; c += panel_columns) {
    const std::uint32_t count = columns - c < panel_columns ? columns - c : panel_columns;
    unpack_panel_generic<Format>(weights, first + c, count, scratch);
    integer_panel_rows<Format>(scratch, count, rows, row_count,
                               {out.data + c, out.stride, out.accumulate});
  }
}

template <WeightFormat Format>
static void few_rows_product(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                             const QuantizedRows& rows, std::uint32_t row_count,
                             IntegerPanel scratch, OutputRows out) {
#if defined(HEADRACE_DIRECT_PRODUCTS)
  const std::uint32_t whole = columns / lanes * lanes;
  few_rows_product_direct<Format>(weights, first, whole, rows, row_count, out);
  first += whole;
  out.data += whole;
  columns -= whole;
#endif
  if (columns > 0) {
    few_rows_product_by_panel<Format>(weights, first, columns, rows, row_count, scratch, out);
  }
}

template <WeightFormat Format>
static void unpack_panel(const WeightRows& weights, std::uint32_t first, std::uint32_t columns,
                         IntegerPanel out) {
#if defined(HEADRACE_DIRECT_PRODUCTS)
  if (columns == panel_columns) return unpack_panel_direct<Format>(weights, first, out);
#endif
  unpack_panel_generic<Format>(weights, first, columns, out);
}

/// Calls `f.template operator()<Format>()` for a runtime integer format.
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
    case WeightFormat::q4_k:
      return f.template operator()<WeightFormat::q4_k>();
    case WeightFormat::q5_k:
      return f.template operator()<WeightFormat::q5_k>();
    case WeightFormat::q6_k:
      return f.template operator()<WeightFormat::q6_k>();
    default:
      return;  // not an integer format
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

static void integer_few_rows_product_any(const WeightRows& weights, std::uint32_t first,
                                         std::uint32_t columns, const QuantizedRows& rows,
                                         std::uint32_t row_count, IntegerPanel scratch,
                                         OutputRows out) {
  with_format(weights.format, [&]<WeightFormat Format>() {
    few_rows_product<Format>(weights, first, columns, rows, row_count, scratch, out);
  });
}

}  // namespace headrace::kernel::HEADRACE_ISA
