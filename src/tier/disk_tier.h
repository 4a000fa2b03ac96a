// DiskTier: sealed pages in one file of a directory, in slots of equal size, each a header and a
// payload (docs/formats/page.md).
//
// Lifecycle of the directory (tier_directory.h):
//   1. open() makes it, takes `headrace.lock` (one process at a time), removes page files that a
//      process which died left behind, and proves that files can be made in it.
//   2. The page file `pages-<random>.hrp` is created at the first put, so that a run that never
//      needs it writes nothing.
//   3. The destructor waits for the IO in flight and removes the page file, the lock file, and the
//      directories that open() made.
//
// The page file grows to the highest slot used at once and never beyond `limit_bytes`; a freed slot
// is used again, lowest first. Any failed read drops the page, whatever its shares: a replay then
// writes it anew. A page that is still being written is read from the payload of
// its put. After a failed write the key is forgotten and later puts are tried as before.
#pragma once

#include <memory>
#include <string>

#include "env/env.h"
#include "tier/tier.h"

namespace headrace {

struct DiskTierOptions {
  std::string directory;
  std::uint64_t limit_bytes = 0;  ///< of the page file; 0: no limit of ours, only the device's
  /// Most pages stored. Fixes the size of the index, about 48 bytes of memory a page, which is part
  /// of memory_bytes(). 0: what `limit_bytes` allows, but at most disk_tier_pages_default.
  std::uint32_t max_pages = 0;
  PageShape shape;               ///< every page of a tier has the same
  std::uint32_t io_threads = 1;  ///< at least 1
  /// Most submissions in flight, at least 1. Each costs a bit more than 4 KiB of memory.
  std::uint32_t queue_depth = 32;
};

inline constexpr std::uint32_t disk_tier_pages_default = 65'536;

/// Bytes that one page of `shape` takes in the page file.
std::uint64_t disk_tier_slot_bytes(const PageShape& shape);

/// What memory_bytes() of a tier opened with `options` will be, to reserve it before.
std::uint64_t disk_tier_memory_bytes(const DiskTierOptions& options);

/// Errors: io (directory cannot be made or written, or another process uses it; the message says
/// what to do), invalid_argument (no directory, a limit below one page), out_of_budget (no memory
/// for the buffers).
Result<std::unique_ptr<Tier>> open_disk_tier(Env& env, const DiskTierOptions& options);

}  // namespace headrace
