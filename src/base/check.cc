#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace headrace {

void check_failed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "headrace: %s:%d: bug: %s (%s does not hold)\n", file, line, why, condition);
  std::abort();
}

}  // namespace headrace
