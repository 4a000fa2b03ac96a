// `headrace bench --store`: what memory and disk cost when they hold keys and values for the pool,
// beside what this machine could reach.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "cli/bench_engine.h"

namespace headrace {

struct StoreFigure {
  std::string part;  ///< "limits", "decode", "restart", "lookup" or "sharing"
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0;  ///< what the value could be at best; 0: not known
};

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
Result<std::vector<StoreFigure>> measure_store(const BenchSetup& setup, const StoreBenchSize& size,
                                               CommandContext& context);

void print_store(std::ostream& out, const std::vector<StoreFigure>& figures);
std::string store_markdown(const std::vector<StoreFigure>& figures);
/// A list of objects, one a figure.
std::string store_json(const std::vector<StoreFigure>& figures);

}  // namespace headrace
