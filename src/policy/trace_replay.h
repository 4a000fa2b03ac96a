// Replays a trace of requests against a cache that holds no bytes: what would a policy have hit?
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/cache_policy.h"

namespace headrace {

/// One request: the blocks of its prompt, in order. Equal numbers are equal prefixes.
struct TraceRequest {
  std::vector<std::uint64_t> blocks = {};
  bool ends_in_tail = false;  ///< the last block is not full
};

struct TraceHits {
  std::uint64_t blocks = 0;  ///< asked for
  std::uint64_t hits = 0;    ///< of them, those of a prefix that was in the cache
  double rate() const {
    return blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(blocks);
  }
};

/// The cache holds `capacity_blocks` blocks of equal size and cost. The blocks of the request under
/// way stay; those for which there is no room then are not kept.
TraceHits replay_trace(std::span<const TraceRequest> requests, CachePolicyKind kind,
                       std::size_t capacity_blocks);

/// What nobody can beat: lets the block go that is used last of all, knowing the future (Belady).
TraceHits replay_optimum(std::span<const TraceRequest> requests, std::size_t capacity_blocks);

/// A cache that never ends.
TraceHits replay_infinite(std::span<const TraceRequest> requests);

/// The part of the way from `floor` to `ceiling` that `rate` has gone; 0 where there is no way.
double gap_closed(double floor, double rate, double ceiling);

}  // namespace headrace
