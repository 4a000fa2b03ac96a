// Errors of the operating system as values.
#pragma once

#include <string>
#include <string_view>

#include "headrace/result.h"

namespace headrace {

/// "cannot open 'path': No such file or directory", with the code that callers branch on: a full
/// disk or quota is out_of_budget, a missing file not_found, everything else io. `number` is an
/// errno.
Error posix_error(std::string_view action, const std::string& path, int number);

}  // namespace headrace
