// SamplingFlags: how answers are chosen and when they end.
#pragma once

#include <cstdint>

#include "headrace/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): a library's
class App;
}

namespace headrace {

struct SamplingFlags {
  /// `tokens`: the default of -n. Must outlive the parsing.
  void add_to(CLI::App& command, std::uint32_t tokens);

  GenerateOptions options;  ///< without callbacks
};

}  // namespace headrace
