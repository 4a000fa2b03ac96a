#include "headrace/result.h"

namespace headrace {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::corrupt:
      return "corrupt";
    case ErrorCode::out_of_budget:
      return "out_of_budget";
    case ErrorCode::io:
      return "io";
    case ErrorCode::page_lost:
      return "page_lost";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace headrace
