#include <CLI/CLI.hpp>
#include <exception>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/exit_code.h"

#ifndef HEADRACE_VERSION
#define HEADRACE_VERSION "0.1.0"
#endif

namespace headrace {
namespace {

constexpr const char* description =
    "Headrace runs GGUF language models over texts whose KV cache is larger than its memory:\n"
    "--kv-memory limits what is held, the rest waits on disk, and the answer stays the same.";

constexpr const char* footer =
    "Examples:\n"
    "  headrace run -m model.gguf -p \"Why is the sky blue?\"\n"
    "  headrace run -m model.gguf -f book.txt -p \"Who is the narrator?\" --kv-memory 64MiB\n"
    "  headrace inspect model.gguf\n"
    "\n"
    "`headrace COMMAND --help` explains a command. Exit codes: 0 done, 1 failed, 2 wrong usage,\n"
    "130 stopped by Ctrl-C.";

Error usage_error(const CLI::App& program, const CLI::ParseError& error) {
  std::string help = "headrace";
  for (const CLI::App* command : program.get_subcommands()) help += " " + command->get_name();
  std::string message = error.what();
  if (program.get_subcommands().empty() && error.get_name() == "RequiredError") {
    message =
        "which command? run, chat, sessions, perplexity, eval, calibrate, inspect, bench, trace or "
        "verify";
  }
  return {ErrorCode::invalid_argument, message + "; see `" + help + " --help`"};
}

int parse_and_execute(int argc, const char* const* argv, CommandContext& context) {
  CLI::App program(description, "headrace");
  program.footer(footer);
  program.set_version_flag("--version", "headrace " HEADRACE_VERSION);
  program.require_subcommand(1);
  program.get_formatter()->column_width(34);
  const std::vector<Command> commands = {
      add_run(program),       add_chat(program),    add_perplexity(program), add_eval(program),
      add_calibrate(program), add_inspect(program), add_bench(program),      add_trace(program),
      add_verify(program),    add_sessions(program)};
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    program.exit(request, context.out, context.err);
    return exit_ok;
  } catch (const CLI::ParseError& error) {
    return report_error(context.err, usage_error(program, error), Phase::opening);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.execute(context);
  }
  return exit_usage;
}

}  // namespace

int run_program(int argc, const char* const* argv, CommandContext& context) {
  int code = exit_failure;
  try {
    code = parse_and_execute(argc, argv, context);
  } catch (const std::bad_alloc&) {
    return report_error(
        context.err,
        {ErrorCode::out_of_budget, "out of memory; try a smaller --context or --kv-memory"},
        Phase::running);
  } catch (const std::exception& error) {  // only libraries throw, and none should get this far
    return report_error(context.err, {ErrorCode::internal, error.what()}, Phase::running);
  }
  context.out.flush();
  if (code == exit_ok && !context.out)
    return report_error(context.err, output_failed(), Phase::running);
  return code;
}

}  // namespace headrace
