// What one core could do at best: loops without a purpose, for a benchmark to measure against.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// Rows and columns of the tile of sums: as large as the registers allow.
#if defined(HEADRACE_ISA_AVX512)
inline constexpr std::uint32_t peak_tile = 4;
#else
inline constexpr std::uint32_t peak_tile = 2;
#endif

/// The compiler must take `memory` for read and changed: it can neither drop the work that made it
/// nor move what reads it out of a loop.
HEADRACE_INLINE void keep_work(void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

/// `steps` times all sums of a tile, sum = multiply(sum, row, column), from operands in `memory`.
/// Returns how many vector operations that were.
template <typename Sum, typename Multiply>
static std::uint64_t repeat_tile(std::uint32_t steps, Sum none, void* memory, Multiply multiply) {
  Sum sums[peak_tile * peak_tile];
#pragma GCC unroll 16
  for (std::uint32_t i = 0; i < peak_tile * peak_tile; ++i) sums[i] = none;
  for (std::uint32_t step = 0; step < steps; ++step) {
    keep_work(memory);
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < peak_tile * peak_tile; ++i) {
      sums[i] = multiply(sums[i], i / peak_tile, i % peak_tile);
    }
  }
  Sum kept[peak_tile * peak_tile];  // a copy: the sums above stay in registers
#pragma GCC unroll 16
  for (std::uint32_t i = 0; i < peak_tile * peak_tile; ++i) kept[i] = sums[i];
  keep_work(kept);
  return std::uint64_t{steps} * peak_tile * peak_tile;
}

static std::uint64_t int8_peak(std::uint32_t steps) {
  struct alignas(64) {
    std::uint8_t weights[peak_tile][64];
    std::int8_t activations[peak_tile][4];
  } operands;
  std::memset(&operands, 1, sizeof operands);
  const auto multiply = [&](I sum, std::uint32_t row, std::uint32_t column) {
    return dot4<false>(sum, load_weights(operands.weights[column]), operands.activations[row]);
  };
  return repeat_tile(steps, set1_i32(0), &operands, multiply) * lanes * 4 * 2;
}

static std::uint64_t bf16_peak([[maybe_unused]] std::uint32_t steps) {
#if defined(HEADRACE_ISA_BF16)
  struct alignas(64) {
    std::uint16_t columns[peak_tile][32];
    std::uint16_t rows[peak_tile][2];
  } operands;
  std::memset(&operands, 0, sizeof operands);
  const auto multiply = [&](F sum, std::uint32_t row, std::uint32_t column) {
    return dot2(sum, set1_pair(operands.rows[row]), load_pairs(operands.columns[column]));
  };
  return repeat_tile(steps, zero(), &operands, multiply) * lanes * 2 * 2;
#else
  return 0;
#endif
}

static float sum_floats(const float* values, std::size_t count) {
  constexpr std::uint32_t chains = 8;
  F sums[chains];
  for (F& sum : sums) sum = zero();
  for (std::size_t at = 0; at + chains * lanes <= count; at += chains * lanes) {
#pragma GCC unroll 8
    for (std::uint32_t i = 0; i < chains; ++i) {
      sums[i] = add(sums[i], load(values + at + i * lanes));
    }
  }
  F sum = sums[0];
  for (std::uint32_t i = 1; i < chains; ++i) sum = add(sum, sums[i]);
  return reduce_add(sum);
}

}  // namespace headrace::kernel::HEADRACE_ISA
