// What `headrace run` says about a finished run, for people and for programs.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>

#include "headrace/engine.h"
#include "policy/repetition.h"

namespace headrace {

struct RunReport {
  const Engine& engine;
  const EngineOptions& options;
  const Generation& generation;
  std::size_t threads;                      ///< in use
  std::span<const Repetition> repetitions;  ///< of the prompt
};

/// A few lines of figures.
void print_summary(std::ostream& out, const RunReport& report);

/// One line: a JSON object. Scripts rely on its field names: add, never rename.
std::string to_json(const RunReport& report);

}  // namespace headrace
