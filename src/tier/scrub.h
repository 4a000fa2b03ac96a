// Scrub: reads everything that a kept disk tier has in a directory and verifies every checksum.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "env/env.h"
#include "headrace/result.h"

namespace headrace {

struct ScrubDamage {
  std::string file;
  std::uint64_t offset = 0;
  std::string reason;
};

struct ScrubReport {
  std::uint64_t segments = 0;
  std::array<std::uint64_t, 4> records = {};  ///< whole ones by RecordKind, dead or alive
  std::uint64_t bytes = 0;                    ///< of segments
  std::uint64_t record_bytes = 0;             ///< of whole records
  std::vector<ScrubDamage> damaged;
  std::vector<std::string> foreign_files;
  bool is_repaired = false;  ///< what is in `damaged` was put in order
};

/// Takes the directory's lock. With `repair` the damage will not be met again: a torn tail is cut
/// off, what is no record becomes empty, and a record with a damaged payload is listed as erased.
/// Segments without a readable header are left alone. Errors: not_found (no directory), io (in use
/// by another process, or cannot be read).
Result<ScrubReport> scrub_directory(Env& env, const std::string& directory, bool repair);

}  // namespace headrace
