// How a memory limit is divided: pure arithmetic, tested by table.
#pragma once

#include <cstdint>

#include "headrace/result.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace headrace {

struct PageStoreOptions;

struct MemoryPlan {
  std::uint32_t blocks_max = 0;    ///< blocks of a full context
  std::uint32_t sketches = 0;      ///< blocks that have room for key sketches
  std::uint32_t index_blocks = 0;  ///< blocks that may be known at once, in use or not
  std::uint32_t slots = 0;         ///< pages of the pool
  std::uint32_t stream_slots = 0;  ///< of these, kept free for streaming; 0 when everything fits
  std::uint32_t slots_least = 0;   ///< below that no step is possible
  std::uint32_t slots_most = 0;    ///< more are of no use
  std::uint64_t pool_bytes = 0;
  std::uint64_t bookkeeping_bytes = 0;
  std::uint64_t slot_books_bytes = 0;  ///< of these, for each slot
  std::uint64_t io_bytes = 0;
  std::uint64_t limit_bytes = 0;
};

/// Divides options.memory_bytes. Errors: out_of_budget when one step does not fit, with the least
/// that does.
Result<MemoryPlan> plan_memory(const PageStoreOptions& options);

/// The tiers below a pool that does not hold everything.
DiskTierOptions tier_options(const PageStoreOptions& options);
HostTierOptions host_options(const PageStoreOptions& options);

/// Bytes that full contexts of all sequences need with everything in memory, bookkeeping included.
std::uint64_t full_memory_bytes(const PageStoreOptions& options);

}  // namespace headrace
