// Interrupts: requests to stop (Ctrl-C, kill, a closed terminal), noticed by commands where it is
// safe to stop.
#pragma once

#include <atomic>
#include <csignal>

namespace headrace {

/// The last signal that asked to stop and was not dealt with. Written by a signal handler, read by
/// the command.
class Interrupts {
 public:
  bool pending() const { return signal() != 0; }
  int signal() const { return signal_.load(std::memory_order_relaxed); }
  void clear() {
    signal_.store(0, std::memory_order_relaxed);
    in_a_row_.store(0, std::memory_order_relaxed);
  }
  /// Async-signal-safe. Returns how many signals came since clear().
  int notice(int signal) {
    signal_.store(signal, std::memory_order_relaxed);
    return in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  /// What a shell reports for a process that this signal ended.
  int exit_code() const { return 128 + signal(); }

 private:
  static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait for a lock");
  std::atomic<int> signal_{0};
  std::atomic<int> in_a_row_{0};
};

/// Sends SIGINT, SIGTERM and SIGHUP to `interrupts`, which must outlive the process's main(). The
/// third signal in a row that nobody dealt with ends the process at once. SIGPIPE is ignored: a
/// closed pipe is a failed write, after which the command cleans up as always.
void deliver_signals_to(Interrupts& interrupts);

}  // namespace headrace
