// Which resident page leaves the pool when room is needed. Policies are pure: no IO, no clock, no
// reach into containers.
//
// Adding a policy: implement EvictionPolicy, add a factory here, list it in eviction_test.cc (the
// conformance suite).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>

namespace headrace {

/// Names a resident page of a block that is in use.
struct PageId {
  std::uint64_t block_id = 0;
  std::uint32_t block = 0;  ///< how many blocks of its text are before it
  std::uint32_t layer = 0;
  auto operator<=>(const PageId&) const = default;
};

/// Keeps track of the sealed resident pages and names the one to let go. Used by the engine loop
/// alone.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  /// A page was sealed or became resident. It must not be tracked already.
  virtual void track(const PageId& page) = 0;
  /// A page left the pool or its sequence ended. Unknown pages are ignored.
  virtual void untrack(const PageId& page) = 0;
  /// The page to let go, or nothing when none is tracked. It stays tracked until untrack().
  virtual std::optional<PageId> victim() const = 0;
};

/// Lets the newest page go first. Exact attention reads every page in every step, in order: a
/// cyclic scan, for which the least recently used page is the worst choice (it is the next one
/// needed) and a fixed resident set is optimal. The oldest pages stay, all layers alike, and the
/// rest streams through a few slots behind them.
std::unique_ptr<EvictionPolicy> new_newest_first_policy();

}  // namespace headrace
