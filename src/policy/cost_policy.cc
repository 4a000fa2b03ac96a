#include "policy/cost_policy.h"

#include <algorithm>
#include <array>
#include <compare>
#include <list>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "policy/child_count.h"
#include "policy/reuse_statistic.h"

namespace headrace {
namespace {

constexpr std::size_t ghosts_per_block = 8;
constexpr std::uint64_t requests_between_lessons = 50;

/// Where a leaf stands among those of its class and age.
struct Place {
  std::uint32_t priority = 0;
  double worth = 0;       // seconds per byte
  std::int64_t turn = 0;  // the parent of a block that left goes next: chains leave one by one
  BlockId block = 0;
  auto operator<=>(const Place&) const = default;
};

class CostPolicy final : public CachePolicy {
 public:
  CostPolicy(std::size_t capacity_blocks, std::size_t sample_weight)
      : most_ghosts_(ghosts_per_block * capacity_blocks),
        statistic_(static_cast<double>(sample_weight)) {}

  void begin_request() override {
    ++now_;
    for (std::size_t reuse_class = 0; reuse_class < reuse_classes; ++reuse_class) {
      for (std::size_t step = 0; step + 1 < age_steps; ++step) grow_older(reuse_class, step);
    }
    if (now_ % requests_between_lessons == 0) statistic_.learn();
  }

  void admit(BlockId name, const BlockFacts& facts) override {
    const auto [entry, is_new] = blocks_.try_emplace(name);
    Block& block = entry->second;
    if (is_new) {
      block.place.block = name;
    } else {
      HEADRACE_CHECK(!block.is_cached, "a block is admitted twice");
      ghosts_.erase(block.ghost);
      stop_watching(block, true);
    }
    block.is_cached = true;
    block.is_tail = facts.is_tail;
    block.parent = facts.parent;
    block.place.priority = std::min(facts.priority, max_block_priority);
    block.place.worth =
        facts.restore_seconds / static_cast<double>(std::max<std::uint64_t>(1, facts.bytes));
    if (children_.add(facts.parent)) {
      const auto parent = blocks_.find(facts.parent);
      if (parent != blocks_.end() && parent->second.is_cached) hide(parent->second);
    }
    watch(block);
    if (!children_.has_children(name)) offer(block, ++last_turn_);
  }

  void touch(BlockId name) override {
    const auto found = blocks_.find(name);
    if (found == blocks_.end() || !found->second.is_cached) return;
    Block& block = found->second;
    const bool is_leaf = hide(block);
    stop_watching(block, true);
    watch(block);
    if (is_leaf) offer(block, ++last_turn_);
  }

  void forget(BlockId name) override {
    const auto found = blocks_.find(name);
    if (found == blocks_.end() || !found->second.is_cached) return;
    Block& block = found->second;
    hide(block);
    block.is_cached = false;
    if (children_.remove(block.parent)) {
      const auto parent = blocks_.find(block.parent);
      if (parent != blocks_.end() && parent->second.is_cached) {
        offer(parent->second, --first_turn_);
      }
    }
    block.ghost = ghosts_.insert(ghosts_.end(), name);
    if (ghosts_.size() <= most_ghosts_) return;
    const auto oldest = blocks_.find(ghosts_.front());
    ghosts_.pop_front();
    stop_watching(oldest->second, false);
    blocks_.erase(oldest);
  }

  std::optional<BlockId> victim(const MayLeave& may_leave) override {
    const Place* least = nullptr;
    double least_value = 0;
    for (std::size_t reuse_class = 0; reuse_class < reuse_classes; ++reuse_class) {
      for (std::size_t step = 0; step < age_steps; ++step) {
        const double density = statistic_.density(reuse_class, step);
        // The first that may leave is the least of its class and age.
        for (const Place& place : groups_[reuse_class][step].leaves) {
          const double value = density * place.worth;
          if (least != nullptr && (place.priority > least->priority ||
                                   (place.priority == least->priority && value >= least_value))) {
            break;
          }
          if (!may_leave(place.block)) continue;
          least = &place;
          least_value = value;
          break;
        }
      }
    }
    if (least == nullptr) return std::nullopt;
    return least->block;
  }

  std::size_t notes() const override { return blocks_.size(); }

 private:
  struct Block {
    BlockId parent = 0;
    Place place;
    std::uint64_t last_use = 0;
    std::list<BlockId>::iterator ghost;  // valid when it is not cached
    Block* older = nullptr;              // of its class and age
    Block* newer = nullptr;
    std::uint8_t uses = 0;
    std::uint8_t reuse_class = 0;
    std::uint8_t step = 0;
    bool is_cached = false;
    bool is_tail = false;
    bool is_leaf = false;
  };
  /// Blocks of one class and age.
  struct Group {
    Block* oldest = nullptr;
    Block* newest = nullptr;
    std::set<Place> leaves;
  };

  Group& group_of(const Block& block) { return groups_[block.reuse_class][block.step]; }

  void append_to_group(Block& block) {
    Group& group = group_of(block);
    block.older = group.newest;
    block.newer = nullptr;
    (group.newest == nullptr ? group.oldest : group.newest->newer) = &block;
    group.newest = &block;
  }

  void remove_from_group(Block& block) {
    Group& group = group_of(block);
    (block.older == nullptr ? group.oldest : block.older->newer) = block.newer;
    (block.newer == nullptr ? group.newest : block.newer->older) = block.older;
  }

  /// Blocks enter a group in the order of their last use, so the first ones get too old first.
  void grow_older(std::size_t reuse_class, std::size_t step) {
    const std::uint64_t end = age_step_ends()[step];
    Group& group = groups_[reuse_class][step];
    while (group.oldest != nullptr && now_ - group.oldest->last_use >= end) {
      Block& block = *group.oldest;
      statistic_.count_survival(reuse_class, step);
      const bool is_leaf = hide(block);
      remove_from_group(block);
      ++block.step;
      append_to_group(block);
      if (is_leaf) offer(block, block.place.turn);
    }
  }

  /// A use: its age is zero again.
  void watch(Block& block) {
    constexpr std::uint8_t most_uses = tail_class;
    block.uses = std::min<std::uint8_t>(block.uses + 1, most_uses);
    block.reuse_class =
        block.is_tail ? std::uint8_t{tail_class} : static_cast<std::uint8_t>(block.uses - 1);
    block.step = 0;
    block.last_use = now_;
    append_to_group(block);
  }

  void stop_watching(Block& block, bool is_used) {
    if (is_used) statistic_.count_use(block.reuse_class, block.step);
    remove_from_group(block);
  }

  void offer(Block& block, std::int64_t turn) {
    block.place.turn = turn;
    block.is_leaf = true;
    group_of(block).leaves.insert(block.place);
  }

  /// True if it was on offer.
  bool hide(Block& block) {
    if (!block.is_leaf) return false;
    block.is_leaf = false;
    group_of(block).leaves.erase(block.place);
    return true;
  }

  const std::size_t most_ghosts_;
  std::uint64_t now_ = 0;
  std::int64_t first_turn_ = 0;
  std::int64_t last_turn_ = 0;
  std::unordered_map<BlockId, Block> blocks_;  // of the cache, and ghosts; they do not move
  std::list<BlockId> ghosts_;                  // the one that left first, first
  ChildCount children_;
  std::array<std::array<Group, age_steps>, reuse_classes> groups_;
  ReuseStatistic statistic_;
};

}  // namespace

std::unique_ptr<CachePolicy> new_cost_policy(std::size_t capacity_blocks,
                                             std::size_t sample_weight) {
  return std::make_unique<CostPolicy>(capacity_blocks, sample_weight);
}

}  // namespace headrace
