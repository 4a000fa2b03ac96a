// `headrace bench --recompute`: how fast keys and values come back of which only the text was kept,
// in runs of so many rows, against reading the text for the first time.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_figures.h"

namespace headrace {

struct RecomputeBenchSize {
  std::uint32_t tokens = 3'072;  ///< of each of two texts that take turns
  std::uint32_t rounds = 3;
};

/// A size for a run of less than a minute.
RecomputeBenchSize quick_recompute_size();

/// Figures are medians of the rounds. Errors: cancelled, and those of Engine.
Result<std::vector<BenchFigure>> measure_recompute(const BenchSetup& setup,
                                                   const RecomputeBenchSize& size,
                                                   CommandContext& context);

}  // namespace headrace
