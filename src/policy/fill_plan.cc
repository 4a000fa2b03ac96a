#include "policy/fill_plan.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace headrace {

FillPlan plan_fill(std::span<const BlockFill> missing) {
  double load = 0;
  for (const BlockFill& block : missing) load += block.load_seconds;
  // Loading from the end towards the beginning, so that the sum of a suffix is exact and an
  // infinite block does not spoil those behind it.
  FillPlan best = {.computed_blocks = missing.size(), .seconds = 0};
  double compute = 0;
  for (const BlockFill& block : missing) compute += block.compute_seconds;
  best.seconds = compute;
  return best;
}

}  // namespace headrace
