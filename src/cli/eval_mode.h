// The modes that `headrace eval` compares: named settings of an engine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headrace/engine.h"

namespace headrace {

/// Everything in memory as it was computed, and read: what the others are compared with.
inline constexpr const char* exact_mode = "exact";

struct EvalMode {
  std::string name;
  std::string family;  ///< modes of one do the same, more or less of it
  EngineOptions options;
  double bits_a_value = 0;  ///< as kept
};

std::vector<std::string> eval_mode_names();
std::vector<std::string> default_eval_mode_names();

/// `name`: one of those above, or several with '+' between them, of which each adds its own.
/// `options`: what the modes have in common. Errors: invalid_argument, with the names that there
/// are.
Result<EvalMode> make_eval_mode(std::string_view name, const EngineOptions& options,
                                const ModelInfo& model);

}  // namespace headrace
