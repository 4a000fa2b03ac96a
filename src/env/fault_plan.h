// What shall go wrong, and when: the script of a FaultEnv.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headrace/result.h"

namespace headrace {

/// What is counted and can be made to go wrong. `any` stands for all of them, in the order in which
/// they happen.
enum class EnvOperation {
  any,
  open,
  read,   ///< File::read_at
  write,  ///< File::write_at
  sync,
  size,
  truncate,
  map,
  read_file,  ///< Env::read_file
  remove,     ///< a file or a directory
  make_directories,
  list_directory,
  free_bytes,
  lock,
  run_program,
};
constexpr std::size_t kEnvOperations = static_cast<std::size_t>(EnvOperation::run_program) + 1;

const char* to_string(EnvOperation operation);

/// With the operations that each can happen to.
enum class FaultKind {
  fail,       ///< any: nothing happens; an error is returned
  flip_bit,   ///< read, write, map, read_file: one bit is wrong, and nobody says so
  end_early,  ///< read (corrupt, as promised), map, read_file: the second half is not there
  tear,       ///< write: the first half reaches the file; an error is returned
};

struct Fault {
  EnvOperation operation = EnvOperation::any;
  std::uint64_t at = 1;  ///< the first operation concerned; 1 is the next one after set_plan()
  FaultKind kind = FaultKind::fail;
  bool lasting = false;            ///< also every later one
  ErrorCode code = ErrorCode::io;  ///< of `fail` and `tear`
  std::uint64_t bit = 0;           ///< of `flip_bit`: which one, modulo the bits there are
};

/// Where several concern one operation, the first in the list counts.
using FaultPlan = std::vector<Fault>;

/// Whether faults of this kind can happen to `operation`.
bool is_possible(FaultKind kind, EnvOperation operation);

/// How many operations there were, by kind.
using OperationCounts = std::array<std::uint64_t, kEnvOperations>;

}  // namespace headrace
