#include "policy/prefetch_policy.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace {
namespace {

constexpr std::array kinds = {PrefetchKind::off, PrefetchKind::conservative,
                              PrefetchKind::aggressive, PrefetchKind::learned};

std::size_t most_blocks(const PrefetchChance& chance) {
  return std::min(chance.stored_blocks, chance.free_slots);
}

class NoPrefetch final : public PrefetchPolicy {
  std::size_t blocks_ahead(const PrefetchChance& /*chance*/) override { return 0; }
  void report(bool /*was_used*/) override {}
};

/// What at least half of the requests went on into, and no more than half of what is free.
class ConservativePrefetch final : public PrefetchPolicy {
  static constexpr std::size_t most_at_a_time = 4;

  std::size_t blocks_ahead(const PrefetchChance& chance) override {
    if (chance.continued == 0 || 2 * chance.continued + 1 < chance.visits) return 0;
    return std::min({most_at_a_time, chance.stored_blocks, chance.free_slots / 2});
  }
  void report(bool /*was_used*/) override {}
};

class AggressivePrefetch final : public PrefetchPolicy {
  std::size_t blocks_ahead(const PrefetchChance& chance) override { return most_blocks(chance); }
  void report(bool /*was_used*/) override {}
};

/// The chance that a chain is continued, from its own past and from how its kind of guess fared
/// everywhere; it loads in proportion, and nothing below one in four.
class LearnedPrefetch final : public PrefetchPolicy {
  // A use in the past weighs half after 64 reports.
  static constexpr double memory = 0.989;
  static constexpr double least_chance = 0.25;
  // What the experience with other chains weighs beside a chain's own, in visits.
  static constexpr double belief_visits = 2;

  std::size_t blocks_ahead(const PrefetchChance& chance) override {
    const double earlier = chance.visits == 0 ? 0 : static_cast<double>(chance.visits - 1);
    const double continued = std::min(static_cast<double>(chance.continued), earlier);
    const double likely =
        (continued + belief_visits * used_ / reported_) / (earlier + belief_visits);
    if (likely < least_chance) {
      // Now and then one block all the same: without it nothing would be learned again.
      return ++refused_ % 16 == 0 ? std::min<std::size_t>(1, most_blocks(chance)) : 0;
    }
    const double share = likely * static_cast<double>(most_blocks(chance));
    return static_cast<std::size_t>(std::ceil(share));
  }

  void report(bool was_used) override {
    used_ = memory * used_ + (was_used ? 1 : 0);
    reported_ = memory * reported_ + 1;
  }

  // It begins with one used of two, so that it tries.
  double used_ = 1;
  double reported_ = 2;
  std::uint64_t refused_ = 0;
};

}  // namespace

const char* to_string(PrefetchKind kind) {
  switch (kind) {
    case PrefetchKind::off:
      return "off";
    case PrefetchKind::conservative:
      return "conservative";
    case PrefetchKind::aggressive:
      return "aggressive";
    case PrefetchKind::learned:
      return "learned";
  }
  return "?";
}

std::optional<PrefetchKind> parse_prefetch(std::string_view name) {
  for (const PrefetchKind kind : kinds) {
    if (name == to_string(kind)) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<PrefetchPolicy> new_prefetch_policy(PrefetchKind kind) {
  switch (kind) {
    case PrefetchKind::off:
      return std::make_unique<NoPrefetch>();
    case PrefetchKind::conservative:
      return std::make_unique<ConservativePrefetch>();
    case PrefetchKind::aggressive:
      return std::make_unique<AggressivePrefetch>();
    case PrefetchKind::learned:
      break;
  }
  return std::make_unique<LearnedPrefetch>();
}

}  // namespace headrace
