#include "kernel/matmul.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace headrace::kernel {
namespace {

/// Up to so many rows read weights in the file's layout; more are worth unpacking a panel for.
constexpr std::uint32_t few_rows = 8;

/// Columns of one task. Few rows are bound by memory, and reading ahead begins anew with every
/// task: each worker gets one run of every matrix. For many, a panel a task balances better.
std::uint32_t task_columns_for(std::uint32_t outputs, std::uint32_t rows, std::size_t workers) {
  if (rows > few_rows) return panel_columns;
  const std::uint64_t share = round_up((outputs + workers - 1) / workers, lanes);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(share, panel_columns, 4096));
}

/// A float panel is the larger of the two kinds: 4 bytes a weight, and 16 columns that ggml decodes
/// into.
std::size_t scratch_bytes(std::uint32_t width) {
  return round_up(std::size_t{width} * (panel_columns + lanes) * sizeof(float), 4096);
}

}  // namespace

Result<MatrixMultiplier> MatrixMultiplier::create(Parallel& parallel, std::uint32_t width_max) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer scratch,
                      AlignedBuffer::allocate(parallel.workers() * scratch_bytes(width_max)));
  return MatrixMultiplier(parallel, width_max, std::move(scratch));
}

std::byte* MatrixMultiplier::worker_scratch(std::size_t worker) {
  return scratch_.data() + worker * scratch_bytes(width_max_);
}

IntegerPanel MatrixMultiplier::worker_panel(std::size_t worker) {
  std::byte* base = worker_scratch(worker);
  const std::size_t blocks = width_max_ / quant_block;
  IntegerPanel panel;
  panel.weights = reinterpret_cast<std::uint8_t*>(base);
  panel.scales = reinterpret_cast<float*>(base + std::size_t{width_max_} * panel_columns);
  panel.minimums = panel.scales + blocks * 2 * panel_columns;
  return panel;
}

void MatrixMultiplier::run_task(const Product& product, const InputRows& input, std::uint32_t first,
                                std::uint32_t columns, std::size_t worker) {
  const KernelTable& table = kernels();
  const WeightMatrix& matrix = *product.matrix;
  const bool few = input.count <= few_rows;
  const OutputRows out{product.out.data + first, product.out.stride, product.out.accumulate};
  if (is_integer(matrix.rows.format)) {
    const IntegerPanel panel = worker_panel(worker);
    if (few) {
      table.integer_few_rows_product(matrix.rows, first, columns, input.quantized, input.count,
                                     panel, out);
    } else {
      table.unpack_panel(matrix.rows, first, columns, panel);
      table.integer_panel_product(matrix.rows.format, panel, columns, input.quantized, input.count,
                                  out);
    }
    return;
  }
  auto* panel = reinterpret_cast<float*>(worker_scratch(worker));
  const std::uint32_t width = matrix.rows.width;
  if (matrix.rows.format != WeightFormat::other) {
    if (few) {
      table.float_few_rows_product(matrix.rows, first, columns, input.floats, input.count, out);
      return;
    }
    table.unpack_float_panel(matrix.rows, first, columns, panel);
  } else {
    float* decoded = panel + std::size_t{width} * panel_columns;
    const WeightRows rows = {WeightFormat::f32, reinterpret_cast<const std::byte*>(decoded),
                             width * sizeof(float), width};
    for (std::uint32_t c = 0; c < columns; c += lanes) {
      const std::uint32_t count = std::min(lanes, columns - c);
      for (std::uint32_t i = 0; i < count; ++i) {
        matrix.to_float(matrix.rows.data + (first + c + i) * matrix.rows.row_bytes,
                        decoded + std::size_t{i} * width, width);
      }
      if (few) {
        table.float_few_rows_product(rows, 0, count, input.floats, input.count,
                                     {out.data + c, out.stride, out.accumulate});
      } else {
        table.unpack_float_panel(rows, 0, count, panel + c);
      }
    }
    if (few) return;
  }
  table.float_panel_product(panel, width, columns, input.floats, input.count, out);
}

void MatrixMultiplier::run(std::span<const Product> products, const InputRows& input) {
  constexpr std::size_t products_max = 4;
  HEADRACE_CHECK(products.size() <= products_max, "more products in a step than a layer has");
  std::array<std::size_t, products_max + 1> first_task{};
  std::array<std::uint32_t, products_max> task_columns{};
  for (std::size_t i = 0; i < products.size(); ++i) {
    const WeightMatrix& matrix = *products[i].matrix;
    HEADRACE_CHECK(matrix.rows.width <= width_max_, "a matrix wider than the panels");
    task_columns[i] = task_columns_for(matrix.outputs, input.count, parallel_->workers());
    first_task[i + 1] = first_task[i] + (matrix.outputs + task_columns[i] - 1) / task_columns[i];
  }
  parallel_->run(first_task[products.size()], [&](std::size_t task, std::size_t worker) {
    std::size_t i = 0;
    while (task >= first_task[i + 1]) ++i;
    const auto first = static_cast<std::uint32_t>(task - first_task[i]) * task_columns[i];
    const std::uint32_t columns = std::min(task_columns[i], products[i].matrix->outputs - first);
    run_task(products[i], input, first, columns, worker);
  });
}

}  // namespace headrace::kernel
