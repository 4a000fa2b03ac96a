// The part of SequenceCache that takes what matters least out of memory. Pages leave as they do
// when room is needed, and groups that recall keeps go with their slots; both can be had again.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "cache/sequence_cache.h"
#include "policy/purge.h"

namespace headrace {

/// What a purge may choose from: pages, and behind them groups.
struct SequenceCache::PurgeList {
  std::uint32_t first_token = 0;
  std::uint64_t end_token = 0;
  std::vector<PurgeItem> items = {};
  std::vector<BlockPage> pages = {};
  std::vector<GroupCache::Held> groups = {};

  bool covers(std::uint32_t first, std::uint32_t tokens) const {
    return first >= first_token && std::uint64_t{first} + tokens <= end_token;
  }
};

Result<std::uint64_t> SequenceCache::purge(const PurgeOptions& options) {
  HEADRACE_CHECK(step_rows_ == 0, "a purge in the middle of a step");
  PurgeList list;
  list.first_token = options.first_token;
  list.end_token = options.tokens == 0 ? store_.options().context
                                       : std::uint64_t{options.first_token} + options.tokens;
  for (std::uint32_t layer = 0; layer < table_.layers(); ++layer)
    if (store_.options().window(layer) == 0) list_pages(layer, list);
  list_groups(list);
  std::vector<BlockPage> pages;
  std::vector<GroupCache::Held> groups;
  for (const std::size_t i : plan_purge(list.items, options.keep_ratio)) {
    if (i < list.pages.size()) {
      pages.push_back(list.pages[i]);
    } else {
      groups.push_back(list.groups[i - list.pages.size()]);
    }
  }
  const std::uint32_t free_before = store_.pool().free_slots();
  if (groups_ != nullptr) groups_->drop(groups, "purge");
  HEADRACE_TRY(store_.demote(pages, "purge"));
  const std::uint32_t free_now = store_.pool().free_slots();
  return (free_now - std::min(free_now, free_before)) * PagePool::slot_bytes(shape());
}

void SequenceCache::list_pages(std::uint32_t layer, PurgeList& list) {
  for (std::uint32_t i = 0; i < table_.blocks(); ++i) {
    Block& block = table_.block(i);
    const std::uint32_t first = table_.first_position(i);
    const bool is_there = block.sealed && block.pages[layer].slot && !block.pages[layer].leaving;
    if (!is_there || !list.covers(first, shape().tokens)) continue;
    list.items.push_back(
        {.mass = page_mass(layer, i) / shape().tokens,
         .tokens = shape().tokens,
         .position = first,
         .stays = stays(first, shape().tokens) || !store_.may_demote(block, layer)});
    list.pages.push_back({&block, layer});
  }
}

void SequenceCache::list_groups(PurgeList& list) const {
  if (groups_ == nullptr) return;
  for (const GroupCache::Held& held : groups_->held()) {
    const std::uint32_t first = held.group * choice_tokens;
    if (!list.covers(first, choice_tokens)) continue;
    list.items.push_back({.mass = held.mass / choice_tokens,
                          .tokens = choice_tokens,
                          .position = first,
                          .stays = stays(first, choice_tokens)});
    list.groups.push_back(held);
  }
}

/// Whether one of these tokens is to stay whatever attention it gets.
bool SequenceCache::stays(std::uint32_t first_token, std::uint32_t tokens) const {
  const std::uint32_t newest =
      position() - std::min(position(), store_.options().newest_always_read());
  if (first_token < store_.options().attention.retain_first || first_token + tokens > newest)
    return true;
  if (zones_.empty()) return false;
  const auto zones = std::span(zones_).subspan(first_token / choice_tokens, tokens / choice_tokens);
  return std::ranges::any_of(zones, [](std::uint8_t zone) { return zone != 0; });
}

/// What steps gave to the tokens of a page, summed and decayed. 0: nobody has noted it.
double SequenceCache::page_mass(std::uint32_t layer, std::uint32_t block) const {
  if (groups_ != nullptr) return groups_->mass(layer, block);
  if (mass_.empty() || mass_until_ != position()) return 0;
  const std::size_t floats = store_.options().mass_floats();
  const std::size_t groups = floats / shape().kv_heads;
  const std::size_t groups_of_block = shape().tokens / 4;
  double mass = 0;
  for (std::uint32_t head = 0; head < shape().kv_heads; ++head) {
    const auto sums = std::span(mass_).subspan(
        layer * floats + head * groups + block * groups_of_block, groups_of_block);
    mass = std::accumulate(sums.begin(), sums.end(), mass);
  }
  return mass;
}

}  // namespace headrace
