// Command: one word after `headrace`, its options and what it does.
#pragma once

#include <functional>

#include "cli/command_context.h"

namespace CLI {  // NOLINT(readability-identifier-naming): a library's
class App;
}

namespace headrace {

struct Command {
  CLI::App* app = nullptr;
  /// Runs with the options that were parsed. Returns the exit code; has reported every error.
  std::function<int(CommandContext&)> execute;
};

/// Each adds its command to the program.
Command add_run(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_perplexity(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_calibrate(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_sessions(CLI::App& program);
Command add_trace(CLI::App& program);
Command add_verify(CLI::App& program);

/// The whole program: parses the command line, runs the command. Returns the exit code. Throws
/// nothing.
int run_program(int argc, const char* const* argv, CommandContext& context);

}  // namespace headrace
