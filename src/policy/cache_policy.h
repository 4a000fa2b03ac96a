// Which block leaves a full cache. Policies are pure: no IO, no clock, no bytes; they are told what
// happens to blocks and name the one to let go.
//
// Time is counted in requests. Blocks hang in a tree (a block continues its parent), and a victim
// never has children in the cache, so that what is left of a prefix is its beginning. Pinned blocks
// and blocks in use are the caller's to know: victim() asks it. A block whose time to live has
// ended is the caller's too: it calls forget(), as for any block that leaves.
//
// Adding a policy: implement CachePolicy (block_tree.h does most of it), add its kind here;
// cache_policy_test.cc holds every kind to the same promises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace headrace {

/// Names a block for as long as it exists, and again when the same text is read later: a key, or a
/// number for it. Not 0.
using BlockId = std::uint64_t;

/// Blocks of a higher priority leave only when no other may.
constexpr std::uint32_t max_block_priority = 3;

struct BlockFacts {
  BlockId parent = 0;          ///< the block that it continues; 0: none
  std::uint32_t depth = 0;     ///< blocks before it
  std::uint64_t bytes = 1;     ///< room that it takes
  double restore_seconds = 1;  ///< to load it or to compute it again, whichever is faster
  std::uint32_t priority = 0;  ///< 0 to max_block_priority
  bool is_tail = false;        ///< the last block of a request, not full
};

/// Names what may be let go.
using MayLeave = std::function<bool(BlockId)>;

/// Used by one thread at a time. The same calls give the same answers.
class CachePolicy {
 public:
  virtual ~CachePolicy() = default;

  /// The next request: its touches and admissions follow. The unit of time.
  virtual void begin_request() = 0;
  /// The block is in the cache from now on. It must not be there already.
  virtual void admit(BlockId block, const BlockFacts& facts) = 0;
  /// A request uses a block of the cache. Unknown blocks are ignored.
  virtual void touch(BlockId block) = 0;
  /// The block has left the cache, evicted or deleted. Unknown blocks are ignored.
  virtual void forget(BlockId block) = 0;
  /// The block to let go: in the cache, without children there, and may_leave() says yes. Nothing
  /// if there is none. It stays until forget().
  virtual std::optional<BlockId> victim(const MayLeave& may_leave) = 0;
  /// Notes that it keeps, on blocks of the cache and on those that left. Each is at most about 150
  /// bytes, and most_notes_per_block() says how many there are at most.
  virtual std::size_t notes() const = 0;
};

enum class CachePolicyKind : std::uint8_t {
  lru,        ///< the one not used for longest
  fifo,       ///< the one that came first
  s3fifo,     ///< first come first gone, but what is used again gets into a second queue
  lrfu,       ///< the least count of uses, where a use counts half after 1000 requests
  cost,       ///< the least seconds saved per byte and request, by what was learned about reuse
  automatic,  ///< what the one of these says that would have saved most seconds lately
};

inline constexpr std::array cache_policy_kinds = {
    CachePolicyKind::lru,  CachePolicyKind::fifo, CachePolicyKind::s3fifo,
    CachePolicyKind::lrfu, CachePolicyKind::cost, CachePolicyKind::automatic};

/// Most notes() for each block of the capacity.
constexpr std::size_t most_notes_per_block(CachePolicyKind kind) {
  switch (kind) {
    case CachePolicyKind::lru:
    case CachePolicyKind::fifo:
      return 1;
    case CachePolicyKind::s3fifo:
    case CachePolicyKind::lrfu:
    case CachePolicyKind::cost:
      return 10;
    case CachePolicyKind::automatic:
      return 40;
  }
  return 0;
}

/// Bytes that a policy may hold.
constexpr std::uint64_t cache_policy_bytes(CachePolicyKind kind, std::size_t capacity_blocks) {
  constexpr std::uint64_t bytes_per_note = 160;  // nodes and buckets of its maps
  return (capacity_blocks + 1) * most_notes_per_block(kind) * bytes_per_note;
}

/// "lru", "fifo", "s3fifo", "lrfu", "cost", "auto"
const char* to_string(CachePolicyKind kind);
std::optional<CachePolicyKind> parse_cache_policy(std::string_view name);

/// `capacity_blocks`: about how many blocks the cache holds, at least 1. What a policy remembers
/// about blocks that have left is bounded by it.
std::unique_ptr<CachePolicy> new_cache_policy(CachePolicyKind kind, std::size_t capacity_blocks);

}  // namespace headrace
