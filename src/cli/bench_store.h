// `headrace bench --store`: what memory and disk cost when they hold keys and values for the pool,
// beside what this machine could reach.
#pragma once

#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_figures.h"

namespace headrace {

struct StoreBenchSize {
  std::uint32_t prompt_tokens = 8'128;                 ///< before decoding
  std::uint32_t steps = 64;                            ///< of decoding
  std::uint32_t restart_tokens = 6'000;                ///< of the prompt that two engines read
  std::uint32_t shared_tokens = 4'000;                 ///< of the prefix that sequences share
  std::uint32_t sequences = 32;                        ///< that share it
  std::uint64_t limit_bytes = std::uint64_t{1} << 30;  ///< of pages, for the limits
};

/// Sizes for a run of less than a minute.
StoreBenchSize quick_store_size();

/// Sizes that fit into the trained context of `model`.
StoreBenchSize fit_store_size(StoreBenchSize size, const ModelInfo& model);

/// Runs everything once. Its files lie in a folder of their own below setup.disk_directory, and are
/// gone at the end. Errors: cancelled, and those of Engine.
Result<std::vector<BenchFigure>> measure_store(const BenchSetup& setup, const StoreBenchSize& size,
                                               CommandContext& context);

}  // namespace headrace
