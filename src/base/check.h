// CHECK: for bugs, never for the world. Stays on in release builds; ends the process with file,
// line and reason.
#pragma once

namespace headrace {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* why);

}  // namespace headrace

/// Ends the process unless `condition` holds. `why` says which promise is broken.
#define HEADRACE_CHECK(condition, why) \
  ((condition) ? static_cast<void>(0)  \
               : ::headrace::check_failed(__FILE__, __LINE__, #condition, why))
