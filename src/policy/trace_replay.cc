#include "policy/trace_replay.h"

#include <compare>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/check.h"

namespace headrace {
namespace {

/// A block in the trace. Its position counts all blocks of all requests before it.
struct Reference {
  BlockId block = 0;
  BlockFacts facts;
  std::size_t position = 0;
};

/// Asks a cache for the blocks of the requests. A Contents has begin_request(), admit(reference),
/// touch(reference), forget(block) and victim(may_leave).
template <typename Contents>
TraceHits replay(std::span<const TraceRequest> requests, std::size_t capacity_blocks,
                 Contents& contents) {
  HEADRACE_CHECK(capacity_blocks > 0, "a cache has room for a block");
  TraceHits total;
  std::unordered_map<BlockId, std::size_t> present;  // and the request that used each last
  for (std::size_t number = 0; number < requests.size(); ++number) {
    const TraceRequest& request = requests[number];
    const MayLeave may_leave = [&](BlockId block) { return present.at(block) != number; };
    contents.begin_request();
    bool is_prefix = true;
    Reference reference;
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      const BlockId parent = reference.block;
      // Names of blocks are not 0, numbers of a trace may be.
      reference = {.block = request.blocks[i] + 1,
                   .facts = {.parent = parent,
                             .depth = static_cast<std::uint32_t>(i),
                             .is_tail = request.ends_in_tail && i + 1 == request.blocks.size()},
                   .position = static_cast<std::size_t>(total.blocks) + i};
      const auto found = present.find(reference.block);
      is_prefix = is_prefix && found != present.end();
      if (is_prefix) ++total.hits;
      if (found != present.end()) {
        found->second = number;
        contents.touch(reference);
        continue;
      }
      if (present.size() == capacity_blocks) {
        const std::optional<BlockId> victim = contents.victim(may_leave);
        if (!victim) break;
        present.erase(*victim);
        contents.forget(*victim);
      }
      present[reference.block] = number;
      contents.admit(reference);
    }
    total.blocks += request.blocks.size();
  }
  return total;
}

class PolicyContents {
 public:
  explicit PolicyContents(CachePolicy& policy) : policy_(policy) {}

  void begin_request() { policy_.begin_request(); }
  void admit(const Reference& reference) { policy_.admit(reference.block, reference.facts); }
  void touch(const Reference& reference) { policy_.touch(reference.block); }
  void forget(BlockId block) { policy_.forget(block); }
  std::optional<BlockId> victim(const MayLeave& may_leave) { return policy_.victim(may_leave); }

 private:
  CachePolicy& policy_;
};

/// Knows the future.
class OptimalContents {
 public:
  explicit OptimalContents(std::span<const TraceRequest> requests) {
    std::unordered_map<BlockId, std::size_t> next;
    std::size_t positions = 0;
    for (const TraceRequest& request : requests) positions += request.blocks.size();
    next_use_.resize(positions);
    std::size_t position = positions;
    for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
      for (auto number = request->blocks.rbegin(); number != request->blocks.rend(); ++number) {
        --position;
        const auto [use, is_last] = next.try_emplace(*number + 1, never);
        next_use_[position] = use->second;
        use->second = position;
      }
    }
  }

  void begin_request() {}
  void admit(const Reference& reference) { place(reference); }
  void touch(const Reference& reference) {
    order_.erase(places_.at(reference.block));
    place(reference);
  }
  void forget(BlockId block) {
    order_.erase(places_.at(block));
    places_.erase(block);
  }
  std::optional<BlockId> victim(const MayLeave& may_leave) {
    for (auto place = order_.rbegin(); place != order_.rend(); ++place) {
      if (may_leave(place->block)) return place->block;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  // A child is never used before its parent, so the last one is a leaf.
  struct Place {
    std::size_t next_use = 0;
    std::uint32_t depth = 0;
    BlockId block = 0;
    auto operator<=>(const Place&) const = default;
  };

  void place(const Reference& reference) {
    const Place place = {.next_use = next_use_[reference.position],
                         .depth = reference.facts.depth,
                         .block = reference.block};
    order_.insert(place);
    places_[reference.block] = place;
  }

  std::vector<std::size_t> next_use_;  // by position
  std::set<Place> order_;
  std::unordered_map<BlockId, Place> places_;
};

}  // namespace

TraceHits replay_trace(std::span<const TraceRequest> requests, CachePolicyKind kind,
                       std::size_t capacity_blocks) {
  const std::unique_ptr<CachePolicy> policy = new_cache_policy(kind, capacity_blocks);
  PolicyContents contents(*policy);
  return replay(requests, capacity_blocks, contents);
}

TraceHits replay_optimum(std::span<const TraceRequest> requests, std::size_t capacity_blocks) {
  OptimalContents contents(requests);
  return replay(requests, capacity_blocks, contents);
}

TraceHits replay_infinite(std::span<const TraceRequest> requests) {
  std::size_t blocks = 1;
  for (const TraceRequest& request : requests) blocks += request.blocks.size();
  return replay_trace(requests, CachePolicyKind::fifo, blocks);
}

double gap_closed(double floor, double rate, double ceiling) {
  return ceiling > floor ? (rate - floor) / (ceiling - floor) : 0;
}

}  // namespace headrace
