// ShadowCache: what a policy would do with the same requests, without the blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "policy/cache_policy.h"

namespace headrace {

class ShadowCache {
 public:
  ShadowCache(std::unique_ptr<CachePolicy> policy, std::size_t capacity_blocks)
      : policy_(std::move(policy)), capacity_blocks_(capacity_blocks) {}

  void begin_request();
  /// A request uses the block, whether the cache has it or not.
  void use(BlockId block, const BlockFacts& facts);

  /// Seconds that were saved since the last call.
  double take_saved_seconds();

  std::size_t notes() const { return policy_->notes() + blocks_.size(); }

 private:
  std::unique_ptr<CachePolicy> policy_;
  const std::size_t capacity_blocks_;
  std::uint64_t now_ = 0;
  std::unordered_map<BlockId, std::uint64_t> blocks_;  // and the request that used each last
  double saved_seconds_ = 0;
};

}  // namespace headrace
