// What a disk and one core can do at best with the pages of a directory: the limits that
// `headrace bench --store` measures a disk tier against.
#pragma once

#include <cstdint>
#include <string>

#include "env/env.h"

namespace headrace {

/// Bytes of pool pages per second; 0 where it could not be measured.
struct TierLimits {
  std::uint64_t pages = 0;    ///< that were measured with
  double lossless_ratio = 0;  ///< bytes that the lossless codec makes of one byte
  double buffered_read = 0;   ///< out of the system's cache, by one core
  double direct_read = 0;     ///< past it, many at a time
  double raw_decode = 0;      ///< verified and decoded by one core, from its own cache
  double lossless_decode = 0;
};

/// Measures with the raw pages in the segments of `directory`, which nobody may have open. Reads up
/// to `bytes_max` of them. Errors: io, out_of_budget (no memory), not_found (no pages).
Result<TierLimits> measure_tier_limits(Env& env, const std::string& directory,
                                       std::uint64_t bytes_max);

}  // namespace headrace
