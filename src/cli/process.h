// What a command asks the operating system about its own process.
#pragma once

#include <cstdint>

namespace headrace {

/// Most resident memory that this process has had so far.
std::uint64_t process_peak_rss_bytes();

bool stdin_is_terminal();
bool stderr_is_terminal();

}  // namespace headrace
