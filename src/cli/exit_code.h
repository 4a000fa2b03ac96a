// Exit codes and the one line that explains them.
#pragma once

#include <ostream>

#include "headrace/result.h"

namespace headrace {

constexpr int exit_ok = 0;
constexpr int exit_failure =
    1;  ///< the world: damaged or unreadable files, a full disk, a failed write
constexpr int exit_usage = 2;  ///< the request: changing the command line helps
constexpr int exit_interrupted = 130;

/// When an error came up. A memory limit that is too small is found while opening; a disk that
/// fills up, later.
enum class Phase { opening, running };

int exit_code_of(const Error& error, Phase phase);

/// Writes "headrace: error: message" as one line and returns the exit code.
int report_error(std::ostream& err, const Error& error, Phase phase);

/// For a write to standard output that failed.
Error output_failed();

}  // namespace headrace
