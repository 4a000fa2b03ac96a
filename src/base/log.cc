#include "base/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/no_memory.h"

namespace headrace {
namespace {

// In the order of LogLevel.
constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warn", "error", "off"};

LogLevel level_from_environment() {
  const char* asked = std::getenv("HEADRACE_LOG");
  for (std::size_t i = 0; asked != nullptr && i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == asked) return static_cast<LogLevel>(i);
  }
  return LogLevel::warn;
}

std::atomic<LogLevel>& level_in_force() {
  static std::atomic<LogLevel> level = level_from_environment();
  return level;
}

}  // namespace

LogLevel log_level() { return level_in_force().load(std::memory_order_relaxed); }

void set_log_level(LogLevel level) { level_in_force().store(level, std::memory_order_relaxed); }

void log_message(LogLevel level, std::string_view message) {
  if (level < log_level() || level == LogLevel::off) return;
  const auto write_line = [&] {
    std::string line = "headrace: ";
    line += kLevelNames[static_cast<std::size_t>(level)];
    line += ": ";
    line += message;
    line += '\n';
    // One call, so that lines of different threads do not mix.
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
  if (!has_memory_for(write_line)) std::fputs("headrace: out of memory\n", stderr);
}

}  // namespace headrace
