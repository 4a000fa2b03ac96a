#include "policy/s3fifo_policy.h"

#include <algorithm>
#include <array>
#include <compare>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "policy/child_count.h"
#include "policy/ghost_list.h"

namespace headrace {
namespace {

constexpr std::uint32_t most_uses = 3;  // that are counted
constexpr std::uint32_t uses_of_main =
    2;  // of a block that gets from the small queue to the main one

enum QueueName : std::uint8_t { small_queue, main_queue };

/// Where a leaf stands in its queue.
struct Place {
  std::uint64_t turn = 0;
  std::uint32_t from_end = 0;  // deeper blocks first
  BlockId block = 0;
  auto operator<=>(const Place&) const = default;
};

class S3FifoPolicy final : public CachePolicy {
 public:
  // The paper's share for the small queue: a tenth.
  explicit S3FifoPolicy(std::size_t capacity_blocks)
      : small_blocks_(std::max<std::size_t>(1, capacity_blocks / 10)), ghosts_(capacity_blocks) {}

  void begin_request() override { ++turn_; }

  void admit(BlockId block, const BlockFacts& facts) override {
    const auto [entry, is_new] = blocks_.try_emplace(block);
    HEADRACE_CHECK(is_new, "a block is admitted twice");
    const QueueName queue = ghosts_.take(block) ? main_queue : small_queue;
    entry->second = {.parent = facts.parent,
                     .place = {.turn = turn_, .from_end = ~facts.depth, .block = block},
                     .priority = std::min(facts.priority, max_block_priority),
                     .queue = queue,
                     .uses = 0};
    ++sizes_[queue];
    if (children_.add(facts.parent)) {
      const auto parent = blocks_.find(facts.parent);
      if (parent != blocks_.end()) leaves_of(parent->second).erase(parent->second.place);
    }
    if (!children_.has_children(block)) leaves_of(entry->second).insert(entry->second.place);
  }

  void touch(BlockId block) override {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    found->second.uses = std::min(found->second.uses + 1, most_uses);
  }

  void forget(BlockId block) override {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    const Block gone = found->second;
    leaves_of(gone).erase(gone.place);
    --sizes_[gone.queue];
    blocks_.erase(found);
    if (children_.remove(gone.parent)) {
      const auto parent = blocks_.find(gone.parent);
      if (parent != blocks_.end()) leaves_of(parent->second).insert(parent->second.place);
    }
    if (gone.queue == small_queue) ghosts_.put(block, {});
  }

  std::optional<BlockId> victim(const MayLeave& may_leave) override {
    for (std::uint32_t priority = 0; priority <= max_block_priority; ++priority) {
      if (leaves_[small_queue][priority].empty() && leaves_[main_queue][priority].empty()) continue;
      const bool small_is_full = sizes_[small_queue] > small_blocks_;
      for (const bool from_small : {small_is_full, !small_is_full}) {
        const auto block = from_small ? victim_of_small(leaves_[small_queue][priority], may_leave)
                                      : victim_of_main(leaves_[main_queue][priority], may_leave);
        if (block) return block;
      }
      // Those of the small queue that were used again are in the main one now.
      if (const auto block = victim_of_main(leaves_[main_queue][priority], may_leave)) return block;
    }
    return std::nullopt;
  }

  std::size_t notes() const override { return blocks_.size() + ghosts_.size(); }

 private:
  struct Block {
    BlockId parent = 0;
    Place place;
    std::uint32_t priority = 0;
    QueueName queue = small_queue;
    std::uint32_t uses = 0;  // since it came or was let off
  };
  struct Nothing {};
  using Leaves = std::set<Place>;

  Leaves& leaves_of(const Block& block) { return leaves_[block.queue][block.priority]; }

  std::optional<BlockId> victim_of_small(Leaves& leaves, const MayLeave& may_leave) {
    for (auto place = leaves.begin(); place != leaves.end();) {
      const BlockId block = place->block;
      ++place;
      if (!may_leave(block)) continue;
      if (blocks_.at(block).uses < uses_of_main) return block;
      move_to_end_of_main(block);
    }
    return std::nullopt;
  }

  /// A block that was used gets another round for each use.
  std::optional<BlockId> victim_of_main(Leaves& leaves, const MayLeave& may_leave) {
    for (auto place = leaves.begin(); place != leaves.end();) {
      const BlockId block = place->block;
      if (may_leave(block)) {
        if (blocks_.at(block).uses == 0) return block;
        // First to its new place, so that the one after it is known to the loop.
        const auto old = place++;
        const bool was_last = place == leaves.end();
        const Place before = *old;
        --blocks_.at(block).uses;
        move_to_end_of_main(block);
        if (was_last) place = leaves.upper_bound(before);
        continue;
      }
      ++place;
    }
    return std::nullopt;
  }

  void move_to_end_of_main(BlockId name) {
    Block& block = blocks_.at(name);
    leaves_of(block).erase(block.place);
    --sizes_[block.queue];
    if (block.queue == small_queue) block.uses = 0;
    block.queue = main_queue;
    ++sizes_[main_queue];
    // A turn of its own, behind what came before.
    block.place.turn = ++turn_;
    leaves_of(block).insert(block.place);
  }

  const std::size_t small_blocks_;
  std::uint64_t turn_ = 0;
  std::unordered_map<BlockId, Block> blocks_;
  ChildCount children_;
  std::array<std::size_t, 2> sizes_ = {};
  std::array<std::array<Leaves, max_block_priority + 1>, 2> leaves_;
  GhostList<Nothing> ghosts_;
};

}  // namespace

std::unique_ptr<CachePolicy> new_s3fifo_policy(std::size_t capacity_blocks) {
  return std::make_unique<S3FifoPolicy>(capacity_blocks);
}

}  // namespace headrace
