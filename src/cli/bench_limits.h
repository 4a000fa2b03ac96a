// The limits of a machine that `headrace bench` measures against: what any program could reach.
#pragma once

#include <cstdint>
#include <string>

#include "env/env.h"
#include "headrace/result.h"

namespace headrace {

/// Per second, all threads together; 0 where it was not or cannot be measured.
struct MachineLimits {
  double memory_read_bytes = 0;
  double int8_operations = 0;  ///< multiplications and additions of 8-bit dot products
  double bf16_operations = 0;  ///< 0: no instructions for it
  double disk_write_bytes = 0;
  double disk_read_bytes = 0;
};

struct LimitsOptions {
  std::uint32_t threads = 1;
  std::string disk_directory = {};  ///< made if missing; must be writable
  std::uint64_t memory_bytes = std::uint64_t{512} << 20;
  std::uint64_t disk_bytes = std::uint64_t{512} << 20;
  std::uint32_t rounds = 5;              ///< the best counts
  std::uint32_t peak_steps = 1U << 22U;  ///< most steps of a peak kernel in one round
};

/// Takes a few seconds. Errors: io, out_of_budget (no memory or disk for it).
Result<MachineLimits> measure_limits(Env& env, const LimitsOptions& options);

/// What the figures were made on.
struct Machine {
  std::string cpu = {};  ///< its name, as the system gives it
  std::uint64_t cores = 0;
  std::uint64_t memory_bytes = 0;
  std::string system = {};  ///< kind and version of the operating system's kernel
  std::string instruction_set = {};
};

Machine describe_machine(Env& env);

}  // namespace headrace
