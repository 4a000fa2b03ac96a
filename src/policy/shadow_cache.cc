#include "policy/shadow_cache.h"

#include <utility>

namespace headrace {

void ShadowCache::begin_request() {
  ++now_;
  policy_->begin_request();
}

void ShadowCache::use(BlockId block, const BlockFacts& facts) {
  const auto found = blocks_.find(block);
  if (found != blocks_.end()) {
    found->second = now_;
    policy_->touch(block);
    saved_seconds_ += facts.restore_seconds;
    return;
  }
  if (blocks_.size() == capacity_blocks_) {
    // What the request under way uses stays.
    const auto victim =
        policy_->victim([this](BlockId other) { return blocks_.at(other) != now_; });
    if (!victim) return;
    policy_->forget(*victim);
    blocks_.erase(*victim);
  }
  blocks_[block] = now_;
  policy_->admit(block, facts);
}

double ShadowCache::take_saved_seconds() { return std::exchange(saved_seconds_, 0.0); }

}  // namespace headrace
