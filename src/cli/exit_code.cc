#include "cli/exit_code.h"

#include <string>

namespace headrace {

int exit_code_of(const Error& error, Phase phase) {
  switch (error.code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
    case ErrorCode::unsupported:
      return exit_usage;
    case ErrorCode::out_of_budget:
      return phase == Phase::opening ? exit_usage : exit_failure;
    case ErrorCode::cancelled:
      return exit_interrupted;
    case ErrorCode::corrupt:
    case ErrorCode::io:
    case ErrorCode::page_lost:
    case ErrorCode::internal:
      break;
  }
  return exit_failure;
}

int report_error(std::ostream& err, const Error& error, Phase phase) {
  // Messages may quote file names and texts of libraries; the promise of one line is kept here.
  std::string line;
  for (const char c : error.message) {
    if (c != '\n' && c != '\r') {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  err << "headrace: error: " << line << std::endl;
  return exit_code_of(error, phase);
}

Error output_failed() {
  return {ErrorCode::io, "cannot write to standard output; is it closed, or its disk full?"};
}

}  // namespace headrace
