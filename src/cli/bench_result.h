// What came out of a benchmark: the samples of each engine on each workload, and their statistics.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_engine.h"

namespace headrace {

/// One engine on one workload.
struct BenchResult {
  Workload workload = {};
  std::string engine = {};
  std::vector<double> samples = {};  ///< tokens per second, one of each round
  std::uint64_t kv_bytes_peak = 0;
  std::uint64_t peak_rss_bytes = 0;

  double median() const;
  double least() const;
  double most() const;
};

struct BenchPlan {
  std::vector<Workload> workloads;
  std::vector<std::unique_ptr<BenchEngine>> engines;
  std::uint32_t rounds = 3;
  /// Told what was measured, and why something was left out.
  std::function<void(const std::string& line)> say;
  /// Told what is measured next; it may take a minute. Optional.
  std::function<void(const std::string& what)> begin = {};
};

/// The engines take turns on each workload, so that a slow spell of the machine meets all of them.
/// One that cannot run a workload is left out of it, with a line. Errors: cancelled.
Result<std::vector<BenchResult>> run_plan(const BenchPlan& plan);

/// The result of `engine` on the workload of that name, or null.
const BenchResult* find_result(std::span<const BenchResult> results, const std::string& workload,
                               const std::string& engine);

}  // namespace headrace
