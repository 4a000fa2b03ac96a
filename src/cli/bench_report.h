// What `headrace bench` says about a finished run, for people and for programs.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_limits.h"
#include "cli/bench_result.h"
#include "headrace/engine.h"

namespace headrace {

struct BenchReport {
  Machine machine;
  MachineLimits limits;
  bool has_limits = false;
  ModelInfo model;
  std::string model_file;  ///< without its folder
  std::uint32_t threads = 0;
  std::uint32_t rounds = 0;
  std::vector<BenchResult> results;
};

/// Tables for a terminal.
void print_report(std::ostream& out, const BenchReport& report);

/// A list of objects, one for each result. Scripts rely on its field names: add, never rename.
std::string results_json(const BenchReport& report);

/// One object: the machine with its limits, the model, and memory over the context.
std::string machine_json(const BenchReport& report);

/// A page with all tables; shows the charts if `has_charts`, which lie beside it.
std::string results_markdown(const BenchReport& report, bool has_charts);

/// File names and SVG documents: speed and memory over the context. Those without points are left
/// out.
std::vector<std::pair<std::string, std::string>> charts(const BenchReport& report);

}  // namespace headrace
