#include "policy/automatic_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>
#include <utility>

#include "policy/cost_policy.h"
#include "policy/ordered_policy.h"
#include "policy/s3fifo_policy.h"
#include "policy/shadow_cache.h"

namespace headrace {
namespace {

constexpr std::size_t candidates = 4;
// Sampling keeps at least this many blocks in a shadow cache; fewer say little.
constexpr std::size_t least_shadow_blocks = 1024;
constexpr std::uint64_t requests_between_choices = 64;
constexpr double memory = 0.95;  // of what was saved, from one choice to the next
constexpr double clear_lead = 1.05;
constexpr std::uint64_t leads_in_a_row = 8;

std::unique_ptr<CachePolicy> new_candidate(std::size_t index, std::size_t capacity_blocks,
                                           std::size_t sample_weight) {
  switch (index) {
    case 0:  // The one that begins: it alone knows what a block costs, and learns the rest.
      return new_cost_policy(capacity_blocks, sample_weight);
    case 1:
      return new_lru_policy();
    case 2:
      return new_lrfu_policy(capacity_blocks);
    default:
      return new_s3fifo_policy(capacity_blocks);
  }
}

/// Spreads names over all numbers (the finisher of MurmurHash 3), so that a part of them is a fair
/// sample.
std::uint64_t scrambled(BlockId block) {
  block = (block ^ (block >> 33U)) * 0xFF51AFD7ED558CCDULL;
  block = (block ^ (block >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return block ^ (block >> 33U);
}

class AutomaticPolicy final : public CachePolicy {
 public:
  explicit AutomaticPolicy(std::size_t capacity_blocks)
      : sample_one_in_(
            std::bit_floor(std::max<std::size_t>(1, capacity_blocks / least_shadow_blocks))) {
    const std::size_t shadow_blocks = std::max<std::size_t>(1, capacity_blocks / sample_one_in_);
    for (std::size_t i = 0; i < candidates; ++i) {
      policies_[i] = new_candidate(i, capacity_blocks, 1);
      shadows_[i] = std::make_unique<ShadowCache>(new_candidate(i, shadow_blocks, sample_one_in_),
                                                  shadow_blocks);
    }
  }

  void begin_request() override {
    for (const auto& policy : policies_) policy->begin_request();
    for (const auto& shadow : shadows_) shadow->begin_request();
    if (++now_ % requests_between_choices == 0) choose();
  }

  void admit(BlockId block, const BlockFacts& facts) override {
    for (const auto& policy : policies_) policy->admit(block, facts);
    // A sample has gaps: the parent there is the nearest ancestor that is in it.
    BlockFacts sampled = facts;
    const auto parent = blocks_.find(facts.parent);
    if (!is_sampled(facts.parent)) {
      sampled.parent = parent == blocks_.end() ? 0 : parent->second.parent;
    }
    blocks_[block] = sampled;
    use_in_shadows(block, sampled);
  }

  void touch(BlockId block) override {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    for (const auto& policy : policies_) policy->touch(block);
    use_in_shadows(block, found->second);
  }

  void forget(BlockId block) override {
    for (const auto& policy : policies_) policy->forget(block);
    blocks_.erase(block);
  }

  std::optional<BlockId> victim(const MayLeave& may_leave) override {
    return policies_[chosen_]->victim(may_leave);
  }

  std::size_t notes() const override {
    std::size_t all = blocks_.size();
    for (const auto& policy : policies_) all += policy->notes();
    for (const auto& shadow : shadows_) all += shadow->notes();
    return all;
  }

 private:
  bool is_sampled(BlockId block) const {
    return block != 0 && (scrambled(block) & (sample_one_in_ - 1)) == 0;
  }

  void use_in_shadows(BlockId block, const BlockFacts& facts) {
    if (!is_sampled(block)) return;
    for (const auto& shadow : shadows_) shadow->use(block, facts);
  }

  /// A small or short lead is noise, and each change of mind costs: what one policy kept is not
  /// what the next one wants.
  void choose() {
    for (std::size_t i = 0; i < candidates; ++i) {
      saved_seconds_[i] = memory * saved_seconds_[i] + shadows_[i]->take_saved_seconds();
    }
    const auto best = std::max_element(saved_seconds_.begin(), saved_seconds_.end());
    leads_ = *best > clear_lead * saved_seconds_[chosen_] ? leads_ + 1 : 0;
    if (leads_ < leads_in_a_row) return;
    chosen_ = static_cast<std::size_t>(best - saved_seconds_.begin());
    leads_ = 0;
  }

  const std::size_t sample_one_in_;  // a power of two
  std::uint64_t now_ = 0;
  std::size_t chosen_ = 0;
  std::uint64_t leads_ = 0;  // in a row, of others over the chosen one
  std::array<std::unique_ptr<CachePolicy>, candidates> policies_;  // all know what is in the cache
  std::array<std::unique_ptr<ShadowCache>, candidates> shadows_;
  std::array<double, candidates> saved_seconds_ = {};
  std::unordered_map<BlockId, BlockFacts> blocks_;  // of the cache, with the parent in the sample
};

}  // namespace

std::unique_ptr<CachePolicy> new_automatic_policy(std::size_t capacity_blocks) {
  return std::make_unique<AutomaticPolicy>(capacity_blocks);
}

}  // namespace headrace
