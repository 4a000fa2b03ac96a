// Policies that give every block one rank and let the least go: LRU, FIFO, LRFU.
#pragma once

#include <memory>

#include "policy/cache_policy.h"

namespace headrace {

/// Of the blocks that one request used, those further back in the text go first.
std::unique_ptr<CachePolicy> new_lru_policy();

/// By admission, whatever is used.
std::unique_ptr<CachePolicy> new_fifo_policy();

/// Least recently and frequently used: a use counts half after 1000 requests. Uses are remembered
/// for as many blocks that left as there are in the cache.
std::unique_ptr<CachePolicy> new_lrfu_policy(std::size_t capacity_blocks);

}  // namespace headrace
