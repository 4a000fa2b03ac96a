#include "policy/ordered_policy.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "policy/child_count.h"
#include "policy/ghost_list.h"

namespace headrace {
namespace {

/// Where a leaf stands in the order of leaving; the least goes first.
struct Place {
  std::uint32_t priority = 0;
  double rank = 0;
  std::uint32_t from_end = 0;  // deeper blocks first
  BlockId block = 0;
  auto operator<=>(const Place&) const = default;
};

/// Keeps the leaves in order. Who derives says what the rank of a block is.
class OrderedPolicy : public CachePolicy {
 public:
  void begin_request() final { ++now_; }

  void admit(BlockId block, const BlockFacts& facts) final {
    const auto [entry, is_new] = blocks_.try_emplace(block);
    HEADRACE_CHECK(is_new, "a block is admitted twice");
    entry->second = {.parent = facts.parent,
                     .place = {.priority = std::min(facts.priority, max_block_priority),
                               .rank = rank_of_new(block),
                               .from_end = ~facts.depth,
                               .block = block}};
    if (children_.add(facts.parent)) {
      const auto parent = blocks_.find(facts.parent);
      if (parent != blocks_.end()) leaves_.erase(parent->second.place);
    }
    if (!children_.has_children(block)) leaves_.insert(entry->second.place);
  }

  void touch(BlockId block) final {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    Place& place = found->second.place;
    const bool is_leaf = leaves_.erase(place) > 0;
    place.rank = rank_of_used(place.rank);
    if (is_leaf) leaves_.insert(place);
  }

  void forget(BlockId block) final {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    const Block gone = found->second;
    leaves_.erase(gone.place);
    blocks_.erase(found);
    if (children_.remove(gone.parent)) {
      const auto parent = blocks_.find(gone.parent);
      if (parent != blocks_.end()) leaves_.insert(parent->second.place);
    }
    remember(block, gone.place.rank);
  }

  std::optional<BlockId> victim(const MayLeave& may_leave) final {
    for (const Place& place : leaves_) {
      if (may_leave(place.block)) return place.block;
    }
    return std::nullopt;
  }

  std::size_t notes() const override { return blocks_.size(); }

 protected:
  virtual double rank_of_new(BlockId block) = 0;
  virtual double rank_of_used(double rank) const = 0;
  virtual void remember(BlockId /*block*/, double /*rank*/) {}

  double now() const { return static_cast<double>(now_); }

 private:
  struct Block {
    BlockId parent = 0;
    Place place;
  };

  std::uint64_t now_ = 0;
  std::unordered_map<BlockId, Block> blocks_;
  ChildCount children_;
  std::set<Place> leaves_;
};

class LruPolicy final : public OrderedPolicy {
  double rank_of_new(BlockId /*block*/) override { return now(); }
  double rank_of_used(double /*rank*/) const override { return now(); }
};

class FifoPolicy final : public OrderedPolicy {
  double rank_of_new(BlockId /*block*/) override { return now(); }
  double rank_of_used(double rank) const override { return rank; }
};

/// The count of uses at time t is the sum of 2^((use - t) / half_life). Its order at any t is that
/// of log2 of the sum of 2^(use / half_life), which stays as it is until the next use.
class LrfuPolicy final : public OrderedPolicy {
 public:
  explicit LrfuPolicy(std::size_t capacity_blocks) : ghosts_(capacity_blocks) {}

  std::size_t notes() const override { return OrderedPolicy::notes() + ghosts_.size(); }

 private:
  static constexpr double half_life_requests = 1000;

  double rank_of_new(BlockId block) override {
    const std::optional<double> earlier = ghosts_.take(block);
    return earlier ? rank_of_used(*earlier) : now() / half_life_requests;
  }
  double rank_of_used(double rank) const override {
    const double use = now() / half_life_requests;
    const double more = std::max(rank, use);
    return more + std::log2(1 + std::exp2(std::min(rank, use) - more));
  }
  void remember(BlockId block, double rank) override { ghosts_.put(block, rank); }

  GhostList<double> ghosts_;
};

}  // namespace

std::unique_ptr<CachePolicy> new_lru_policy() { return std::make_unique<LruPolicy>(); }
std::unique_ptr<CachePolicy> new_fifo_policy() { return std::make_unique<FifoPolicy>(); }
std::unique_ptr<CachePolicy> new_lrfu_policy(std::size_t capacity_blocks) {
  return std::make_unique<LrfuPolicy>(capacity_blocks);
}

}  // namespace headrace
