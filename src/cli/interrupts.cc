#include "cli/interrupts.h"

#include <array>

namespace headrace {
namespace {

constexpr int patience = 3;
Interrupts* receiver = nullptr;

extern "C" void on_signal(int signal) {
  if (receiver->notice(signal) < patience) return;
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  raise(signal);
}

}  // namespace

void deliver_signals_to(Interrupts& interrupts) {
  receiver = &interrupts;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_signal;
  // Without SA_RESTART, so that Ctrl-C also ends the wait for a line of input.
  action.sa_flags = 0;
  for (const int signal : std::array{SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace headrace
