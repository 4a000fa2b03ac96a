#include "policy/fill_plan.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.h"

namespace headrace {
namespace {

// Of the newest measurement: the last ten make up 90 % of the mean.
constexpr double newest_share = 0.2;
constexpr std::uint32_t first_range_tokens = 1024;

}  // namespace

FillPlan plan_fill(std::span<const BlockFill> missing, double least_gain) {
  // Sums from the end, not differences of sums: a block that no tier has makes those infinite that
  // would load it, and no others.
  std::vector<double> load_from(missing.size() + 1, 0.0);
  for (std::size_t i = missing.size(); i > 0; --i) {
    load_from[i - 1] = load_from[i] + missing[i - 1].load_seconds;
  }
  FillPlan best = {.computed_blocks = 0, .seconds = load_from[0]};
  double compute = 0;
  for (std::size_t computed = 1; computed <= missing.size(); ++computed) {
    compute += missing[computed - 1].compute_seconds;
    const double seconds = std::max(compute, load_from[computed]);
    if (seconds < best.seconds) best = {.computed_blocks = computed, .seconds = seconds};
  }
  if (compute < never_seconds && best.seconds > (1 - least_gain) * compute) {
    return {.computed_blocks = missing.size(), .seconds = compute};
  }
  return best;
}

void RunningRate::measure(double amount, double seconds) {
  if (!(amount > 0) || !(seconds > 0)) return;
  const double rate = seconds / amount;
  seconds_per_unit_ =
      is_known_ ? (1 - newest_share) * seconds_per_unit_ + newest_share * rate : rate;
  is_known_ = true;
}

double RunningRate::seconds_for(double amount) const {
  return is_known_ ? seconds_per_unit_ * amount : never_seconds;
}

void FillCosts::measure_load(std::size_t tier, std::uint64_t bytes, double seconds) {
  HEADRACE_CHECK(tier < most_tiers, "a tier that is not known");
  loads_[tier].measure(static_cast<double>(bytes), seconds);
}

void FillCosts::measure_compute(std::uint32_t position, std::uint32_t tokens, double seconds) {
  computations_[range_of(position)].measure(tokens, seconds);
}

double FillCosts::load_seconds(std::size_t tier, std::uint64_t bytes) const {
  HEADRACE_CHECK(tier < most_tiers, "a tier that is not known");
  return loads_[tier].seconds_for(static_cast<double>(bytes));
}

double FillCosts::compute_seconds(std::uint32_t position, std::uint32_t tokens) const {
  const std::size_t range = range_of(position);
  for (std::size_t distance = 0; distance < position_ranges; ++distance) {
    if (distance <= range && computations_[range - distance].is_known()) {
      return computations_[range - distance].seconds_for(tokens);
    }
    if (range + distance < position_ranges && computations_[range + distance].is_known()) {
      return computations_[range + distance].seconds_for(tokens);
    }
  }
  return never_seconds;
}

std::size_t FillCosts::range_of(std::uint32_t position) {
  const auto doublings = static_cast<std::size_t>(std::bit_width(position / first_range_tokens));
  return std::min(doublings, position_ranges - 1);
}

}  // namespace headrace
