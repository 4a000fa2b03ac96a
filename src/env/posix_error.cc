#include "env/posix_error.h"

#include <cerrno>
#include <system_error>

namespace headrace {
namespace {

ErrorCode code_of(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
      return ErrorCode::out_of_budget;
    case ENOENT:
      return ErrorCode::not_found;
    default:
      return ErrorCode::io;
  }
}

}  // namespace

Error posix_error(std::string_view action, const std::string& path, int number) {
  return {code_of(number), "cannot " + std::string(action) + " '" + path +
                               "': " + std::generic_category().message(number)};
}

}  // namespace headrace
