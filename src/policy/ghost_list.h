// GhostList: what is remembered about blocks that have left, the oldest forgotten first.
#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "policy/cache_policy.h"

namespace headrace {

template <typename Memory>
class GhostList {
 public:
  explicit GhostList(std::size_t capacity) : capacity_(capacity) {}

  /// `block` must not be remembered already.
  void put(BlockId block, Memory memory) {
    if (capacity_ == 0) return;
    if (places_.size() == capacity_) {
      places_.erase(order_.front().first);
      order_.pop_front();
    }
    order_.emplace_back(block, std::move(memory));
    places_[block] = std::prev(order_.end());
  }

  /// What is remembered, and not any longer.
  std::optional<Memory> take(BlockId block) {
    const auto found = places_.find(block);
    if (found == places_.end()) return std::nullopt;
    std::optional<Memory> memory = std::move(found->second->second);
    order_.erase(found->second);
    places_.erase(found);
    return memory;
  }

  std::size_t size() const { return places_.size(); }

 private:
  using Order = std::list<std::pair<BlockId, Memory>>;

  const std::size_t capacity_;
  Order order_;  // the oldest first
  std::unordered_map<BlockId, typename Order::iterator> places_;
};

}  // namespace headrace
