#include "policy/cache_policy.h"

#include <list>
#include <unordered_map>

namespace headrace {
namespace {

class LruPolicy final : public CachePolicy {
 public:
  void admit(BlockId block, const BlockFacts&) override {
    places_[block] = order_.insert(order_.end(), block);
  }
  void touch(BlockId block) override {
    const auto place = places_.find(block);
    if (place != places_.end()) order_.splice(order_.end(), order_, place->second);
  }
  void forget(BlockId block) override {
    const auto place = places_.find(block);
    if (place == places_.end()) return;
    order_.erase(place->second);
    places_.erase(place);
  }
  std::optional<BlockId> victim(const std::function<bool(BlockId)>& may_leave) override {
    for (const BlockId block : order_) {
      if (may_leave(block)) return block;
    }
    return std::nullopt;
  }

 private:
  std::list<BlockId> order_;
  std::unordered_map<BlockId, std::list<BlockId>::iterator> places_;
};

}  // namespace

std::unique_ptr<CachePolicy> new_lru_policy() { return std::make_unique<LruPolicy>(); }

}  // namespace headrace
