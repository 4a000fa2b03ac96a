// FillPlan: what to compute again and what to load, when a run of blocks at some place of a prefix
// is missing.
//
// Computing a block needs all blocks before it, so what is computed is the beginning of the run;
// the rest is loaded meanwhile. Both lanes work at once and meet where they end at the same time:
// with T_R to compute all and T_L to load all, after about 1 / (1 / T_R + 1 / T_L).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace headrace {

/// For what cannot be done at all, such as loading what no tier has.
constexpr double never_seconds = std::numeric_limits<double>::infinity();

/// What one missing block costs, either way.
struct BlockFill {
  double compute_seconds = never_seconds;
  double load_seconds = never_seconds;
};

struct FillPlan {
  std::size_t computed_blocks = 0;  ///< the first ones; the others are loaded
  double seconds = 0;  ///< until both lanes have ended; never_seconds: it cannot be done
};

/// The split that ends first; of equal ones the one that loads more. Estimates err, so loading has
/// to save at least `least_gain` (a part of 1) of the time to compute everything, or everything is
/// computed: a cache that is slow costs nothing.
FillPlan plan_fill(std::span<const BlockFill> missing, double least_gain);

/// A mean of measurements in which the last ones count most. Thread-safety: none.
class RunningRate {
 public:
  /// Something took that long. Amounts or times that are not above zero say nothing.
  void measure(double amount, double seconds);

  bool is_known() const { return is_known_; }
  /// Seconds for an amount; never_seconds as long as nothing was measured.
  double seconds_for(double amount) const;

 private:
  double seconds_per_unit_ = 0;
  bool is_known_ = false;
};

/// What loading and computing cost here, learned while doing it.
class FillCosts {
 public:
  static constexpr std::size_t most_tiers = 4;

  void measure_load(std::size_t tier, std::uint64_t bytes, double seconds);
  /// `tokens` from `position` on were computed in that time.
  void measure_compute(std::uint32_t position, std::uint32_t tokens, double seconds);

  double load_seconds(std::size_t tier, std::uint64_t bytes) const;
  /// Attention makes later tokens dearer: measured by position, and where nothing was measured
  /// taken from the nearest position that was.
  double compute_seconds(std::uint32_t position, std::uint32_t tokens) const;

 private:
  // Positions below 1024, 2048, 4096 and so on.
  static constexpr std::size_t position_ranges = 12;
  static std::size_t range_of(std::uint32_t position);

  std::array<RunningRate, most_tiers> loads_;
  std::array<RunningRate, position_ranges> computations_;
};

}  // namespace headrace
