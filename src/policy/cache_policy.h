// Which block leaves a full cache of blocks that nobody uses at the moment. Policies are pure: no
// IO, no clock, no reach into containers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace headrace {

using BlockId = std::uint64_t;

struct BlockFacts {
  BlockId parent = 0;       ///< 0: none
  std::uint32_t depth = 0;  ///< blocks before it
  std::uint64_t bytes = 0;
};

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  /// A block is in the cache from now on.
  virtual void admit(BlockId block, const BlockFacts& facts) = 0;
  /// A request used it. Unknown blocks are ignored.
  virtual void touch(BlockId block) = 0;
  /// It left the cache. Unknown blocks are ignored.
  virtual void forget(BlockId block) = 0;
  /// The block to let go, of those for which `may_leave` holds.
  virtual std::optional<BlockId> victim(const std::function<bool(BlockId)>& may_leave) = 0;
};

std::unique_ptr<CachePolicy> new_lru_policy();

}  // namespace headrace
