// Checks the options of an engine against a model and a machine, and fills in what was left to us.
#pragma once

#include "env/env.h"
#include "headrace/engine.h"

namespace headrace {

/// `options` with every 0 and empty default replaced. Errors: invalid_argument, naming the option,
/// its value and the range.
Result<EngineOptions> check_options(const EngineOptions& options, const ModelInfo& model, Env& env);

}  // namespace headrace
