// Log lines on standard error, for people. Quiet by default: warnings and errors.
// HEADRACE_LOG=debug|info|warn|error|off.
#pragma once

#include <string_view>

namespace headrace {

enum class LogLevel { debug, info, warn, error, off };

/// The level in force: HEADRACE_LOG at first use, or what set_log_level() said.
LogLevel log_level();
void set_log_level(LogLevel level);

/// Writes "headrace: warn: message\n" in one call if `level` is at or above the level in force. Any
/// thread.
void log_message(LogLevel level, std::string_view message);

}  // namespace headrace
