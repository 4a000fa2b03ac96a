// run_command(): starts the headrace command as a user would, and tells what came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace::test {

struct CommandOptions {
  std::string input;                       ///< standard input
  std::uint32_t time_limit_seconds = 300;  ///< killed after that
  int signal = 0;                          ///< sent once; 0: none
  /// The command waits for more input until the signal comes.
  bool keep_input_open = false;
  std::string signal_after_text;  ///< when standard output or error contains it; empty: at once
  std::uint32_t signal_after_milliseconds = 0;  ///< and not before
  std::function<void()> before_signal = {};     ///< called while the command runs
  std::uint64_t largest_file_bytes = 0;  ///< writes beyond fail, as on a full disk; 0: no limit
  std::vector<std::string> environment;  ///< more variables, "NAME=value"
};

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal where a signal ended it
  std::string out;
  std::string err;
  std::uint64_t peak_rss_bytes = 0;
  bool timed_out = false;
};

/// Runs the command that HEADRACE_BINARY names with `arguments`.
CommandResult run_command(const std::vector<std::string>& arguments,
                          const CommandOptions& options = {});

/// What HEADRACE_BINARY, HEADRACE_TEST_MODEL and HEADRACE_TEST_GEMMA name; empty if unset or
/// missing, then the test is skipped.
std::string command_path();
std::string test_model_path();
std::string test_gemma_path();

}  // namespace headrace::test
