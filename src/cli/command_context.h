// CommandContext: the world as a command sees it. main() fills it with the real one, tests with
// fakes.
#pragma once

#include <functional>
#include <istream>
#include <memory>
#include <ostream>
#include <string>

#include "cli/interrupts.h"
#include "env/env.h"
#include "headrace/engine.h"

namespace headrace {

struct CommandContext {
  std::function<Result<std::unique_ptr<Engine>>(const EngineOptions&)> open_engine;
  std::function<Result<ModelInfo>(const std::string& path)> inspect_model;
  Env& env;
  Interrupts& interrupts;
  std::istream& in;
  std::ostream& out;  ///< what was asked for: text, or one JSON object
  std::ostream& err;  ///< everything else
  bool in_is_terminal = false;
  bool err_is_terminal = false;
};

}  // namespace headrace
