#include <iostream>

#include "cli/command.h"
#include "cli/process.h"

int main(int argc, char** argv) {
  static headrace::Interrupts interrupts;
  headrace::deliver_signals_to(interrupts);
  headrace::CommandContext context = {
      .open_engine = headrace::Engine::open,
      .inspect_model = headrace::inspect_model,
      .env = headrace::posix_env(),
      .interrupts = interrupts,
      .in = std::cin,
      .out = std::cout,
      .err = std::cerr,
      .in_is_terminal = headrace::stdin_is_terminal(),
      .err_is_terminal = headrace::stderr_is_terminal(),
  };
  return headrace::run_program(argc, argv, context);
}
