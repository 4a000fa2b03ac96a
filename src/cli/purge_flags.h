// PurgeFlags: the options that take old parts of a conversation out of memory: --purge-every,
// --purge-keep and --topic-shift.
#pragma once

#include <cstdint>

#include "cli/engine_flags.h"
#include "headrace/options.h"

namespace headrace {

struct PurgeFlags {
  std::uint32_t every = 0;  ///< turns; 0: never
  PurgeOptions options = {};
  bool topic_shift = false;

  /// Both must outlive the parsing.
  void add_to(CLI::App& command, EngineFlags& engine);
  /// Errors: invalid_argument (what leaves memory would have no other place).
  Result<void> check(const EngineOptions& engine) const;
};

}  // namespace headrace
