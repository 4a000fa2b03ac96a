// Lets the block go whose room saves the least: uses per request (reuse_statistic.h) x seconds to
// restore it / bytes. It learns from every block of the cache and from those that left lately, so
// it sees what it would have gained by keeping them.
#pragma once

#include <memory>

#include "policy/cache_policy.h"

namespace headrace {

/// Remembers eight times as many blocks that left as there are in the cache, each in about 150
/// bytes. `sample_weight`: how many blocks each one stands for, where it sees a sample of them.
std::unique_ptr<CachePolicy> new_cost_policy(std::size_t capacity_blocks,
                                             std::size_t sample_weight);

}  // namespace headrace
