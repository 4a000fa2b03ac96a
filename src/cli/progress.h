// Progress: shows how far a long step has come: a bar that redraws itself on a terminal, elsewhere
// (log files, CI) a line now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

#include "cli/command_context.h"

namespace headrace {

class Progress {
 public:
  /// `what` names the step: "reading". Must not outlive `context`.
  Progress(const CommandContext& context, std::string what);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Cheap when called often: draws only when enough time has gone by.
  void update(std::uint64_t tokens_done, std::uint64_t tokens_total);
  /// Removes the bar. Idempotent.
  void finish();

 private:
  std::ostream& err_;
  Env& env_;
  const bool terminal_;
  const std::string what_;
  const std::chrono::nanoseconds start_;
  std::chrono::nanoseconds drawn_;
  bool bar_visible_ = false;
};

}  // namespace headrace
