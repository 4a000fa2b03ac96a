#include "env/fault_plan.h"

namespace headrace {

const char* to_string(EnvOperation operation) {
  switch (operation) {
    case EnvOperation::any:
      return "any";
    case EnvOperation::open:
      return "open";
    case EnvOperation::read:
      return "read";
    case EnvOperation::write:
      return "write";
    case EnvOperation::sync:
      return "sync";
    case EnvOperation::size:
      return "size";
    case EnvOperation::truncate:
      return "truncate";
    case EnvOperation::map:
      return "map";
    case EnvOperation::read_file:
      return "read_file";
    case EnvOperation::remove:
      return "remove";
    case EnvOperation::make_directories:
      return "make_directories";
    case EnvOperation::list_directory:
      return "list_directory";
    case EnvOperation::free_bytes:
      return "free_bytes";
    case EnvOperation::lock:
      return "lock";
    case EnvOperation::run_program:
      return "run_program";
  }
  return "unknown";
}

bool is_possible(FaultKind kind, EnvOperation operation) {
  const bool gives_data = operation == EnvOperation::read || operation == EnvOperation::map ||
                          operation == EnvOperation::read_file;
  switch (kind) {
    case FaultKind::fail:
      return true;
    case FaultKind::flip_bit:
      return gives_data || operation == EnvOperation::write;
    case FaultKind::end_early:
      return gives_data;
    case FaultKind::tear:
      return operation == EnvOperation::write;
  }
  return false;
}

}  // namespace headrace
