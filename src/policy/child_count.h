// ChildCount: how many children of each block are in the cache. A parent that is not there is
// counted for all the same: it may come later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "policy/cache_policy.h"

namespace headrace {

class ChildCount {
 public:
  /// A child of `parent` came. True for the first one: `parent` is no leaf any more.
  bool add(BlockId parent) { return parent != 0 && ++children_[parent] == 1; }

  /// One left. True for the last one: `parent` is a leaf again.
  bool remove(BlockId parent) {
    const auto found = children_.find(parent);
    if (found == children_.end() || --found->second > 0) return false;
    children_.erase(found);
    return true;
  }

  bool has_children(BlockId block) const { return children_.contains(block); }

 private:
  std::unordered_map<BlockId, std::uint32_t> children_;  // those with at least one
};

}  // namespace headrace
