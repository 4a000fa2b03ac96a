// What `headrace eval` found, for people and for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/scoring.h"
#include "headrace/engine.h"

namespace headrace {

/// One mode on one task.
struct EvalScore {
  std::string task;
  std::size_t asked = 0;   ///< of the full cache
  std::size_t solved = 0;  ///< by the full cache
  std::size_t agreed = 0;  ///< of these, by the mode

  /// Nothing where the full cache solves nothing.
  std::optional<double> agreement() const;
};

struct EvalResult {
  std::string mode;
  std::string family;
  double bits_a_value = 0;
  KvStats kv = {};
  double tokens_per_second = 0;  ///< of questions and answers; 0: there were none
  std::vector<EvalScore> scores = {};
  std::optional<Score> text = {};  ///< where perplexity was asked for

  /// Over all tasks.
  std::optional<double> agreement() const;
};

struct EvalReport {
  std::string model_file;  ///< without its folder
  std::uint32_t context_tokens = 0;
  std::uint32_t threads = 0;
  std::uint64_t seed = 0;
  std::uint32_t text_tokens = 0;         ///< of which perplexity scores the predictions; 0: none
  std::vector<EvalResult> results = {};  ///< the full cache first

  /// Percent of the full cache that a mode keeps and reads.
  double budget(const EvalResult& result) const;
};

/// The table for a terminal.
void print_eval(std::ostream& out, const EvalReport& report);

/// One object. Scripts rely on its field names: add, never rename.
std::string eval_json(const EvalReport& report);

/// A section with the table.
std::string eval_markdown(const EvalReport& report);

/// File names and SVG documents: quality and speed over the budget.
std::vector<std::pair<std::string, std::string>> eval_charts(const EvalReport& report);

}  // namespace headrace
