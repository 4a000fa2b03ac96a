#include "cli/process.h"

#include <sys/resource.h>
#include <unistd.h>

namespace headrace {

// Not part of Env: these only describe this process for people, and no test needs them to be
// different.
std::uint64_t process_peak_rss_bytes() {
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

}  // namespace headrace
