// The part of PageStore that moves pages: to tiers, back, and ahead of their use.
#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "cache/page_store.h"

namespace headrace {
namespace {

std::uint8_t bit(std::size_t tier) { return static_cast<std::uint8_t>(1U << tier); }
std::uint8_t without(std::size_t tier) { return static_cast<std::uint8_t>(~bit(tier)); }

}  // namespace

bool PageStore::anything_in_flight() const {
  return std::ranges::any_of(tiers_, [](const TierState& tier) { return !tier.in_flight.empty(); });
}

/// Of a block that has none, before its pages go to the tier that is kept.
bool PageStore::needs_record(const Block& block, std::size_t tier) const {
  return options_.keep_disk && tier + 1 == tiers_.size() && !block.is_private && !block.recorded;
}

bool PageStore::submit_put(Block& block, std::uint32_t layer, SlotIndex slot, std::size_t tier,
                           Done done) {
  // The description first: without it nobody finds the pages again.
  if (needs_record(block, tier) && !start_record(block)) return false;
  Result<TierTicket> ticket = tiers_[tier].tier->submit_put(
      identity(block, layer), block.pages[layer].checksum, pool_.bytes(slot));
  if (ticket.ok()) {
    tiers_[tier].in_flight.emplace(*ticket, std::move(done));
    return true;
  }
  HEADRACE_CHECK(ticket.error().code == ErrorCode::out_of_budget && anything_in_flight(),
                 "a tier refuses a page though it has nothing to do");
  return false;
}

/// Writes a resident page. False: the queue is full.
bool PageStore::start_put(Block& block, std::uint32_t layer, std::size_t tier) {
  PageEntry& page = block.pages[layer];
  const bool started = submit_put(block, layer, *page.slot, tier,
                                  [this, &block, layer, tier](const Result<void>& outcome) {
                                    finish_put(block, layer, tier, outcome);
                                  });
  page.writing = page.writing || started;
  return started;
}

void PageStore::finish_put(Block& block, std::uint32_t layer, std::size_t tier,
                           const Result<void>& outcome) {
  PageEntry& page = block.pages[layer];
  const bool no_room = !outcome.ok() && outcome.error().code == ErrorCode::out_of_budget;
  bool has_to_wait = false;  // where there is room the queue is full
  if (no_room && page.leaving) {
    const bool is_last = tier + 1 == tiers_.size();
    // Still marked as being written, so that this block is not what makes room.
    if (!is_last || free_disk_room()) {
      if (start_put(block, layer, is_last ? tier : tier + 1)) return;
      has_to_wait = true;
    }
  }
  page.writing = false;
  const bool leaving = std::exchange(page.leaving, false);
  if (leaving) --leaving_;
  if (outcome.ok()) {
    page.stored |= bit(tier);
    ++counters_.pages_written;
    if (leaving) free_slot(block, page);
  } else if (!leaving) {
    // It stays where it is.
  } else if (has_to_wait) {
    // Until it is asked to leave again.
    may_leave(block, layer);
    note_in_pool(block);
  } else if (block.users > 0) {
    track(block, layer);
    note_in_pool(block);
    write_error_ = disk_error(outcome.error());
  } else {
    // Nobody waits for this block: its text can be read again.
    free_slot(block, page);
  }
}

bool PageStore::start_load(Block& block, std::uint32_t layer, SlotIndex slot, Done done) {
  PageEntry& page = block.pages[layer];
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if ((page.stored & bit(tier)) == 0) continue;
    Result<TierTicket> ticket =
        tiers_[tier].tier->submit_get(identity(block, layer), page.checksum, pool_.bytes(slot));
    if (ticket.ok()) {
      note_load(tier, true);
      tiers_[tier].in_flight.emplace(
          *ticket, [this, &page, tier, done = std::move(done)](Result<void> outcome) {
            note_load(tier, false);
            if (!outcome.ok()) page.stored &= without(tier);  // the tier has dropped it
            if (outcome.ok() && tier + 1 < tiers_.size()) ++counters_.pages_filled_from_host;
            if (outcome.ok() && tier + 1 == tiers_.size()) ++counters_.pages_filled_from_disk;
            done(std::move(outcome));
          });
      return true;
    }
    if (ticket.error().code == ErrorCode::out_of_budget) return false;
    page.stored &= without(tier);
  }
  done(Error{ErrorCode::not_found, "no tier has this page any more"});
  return false;
}

bool PageStore::is_stored_in_groups(const PageEntry& page) const {
  return disk_ != nullptr && (page.stored & disk_bit()) != 0;
}

Result<void> PageStore::read_group(const Block& block, std::uint32_t layer, std::uint32_t group,
                                   MutableBytes out) const {
  return disk_->read_groups(identity(block, layer), block.pages[layer].checksum, group, 1, out);
}

/// Loads run many at a time, so what is measured is how much came while any was in flight.
void PageStore::note_load(std::size_t tier, bool is_start) {
  if (is_start) {
    if (loads_in_flight_++ > 0) return;
    loaded_bytes_ = 0;
    loading_since_ = now();
    return;
  }
  loaded_bytes_ += options_.shape.bytes();
  if (--loads_in_flight_ > 0) return;
  costs_.measure_load(tier, loaded_bytes_,
                      std::chrono::duration<double>(now() - loading_since_).count());
}

std::size_t PageStore::blocks_to_compute(std::span<Block* const> blocks) const {
  std::vector<BlockFill> fills;
  for (const Block* block : blocks) {
    BlockFill fill;
    fill.compute_seconds = costs_.compute_seconds(block->first_position, options_.shape.tokens);
    fill.load_seconds = 0;
    for (const PageEntry& page : block->pages) {
      if (page.slot || page.stored == 0) continue;
      const auto tier = static_cast<std::size_t>(std::countr_zero(page.stored));
      const double seconds = costs_.load_seconds(tier, options_.shape.bytes());
      // What was never measured is tried.
      if (seconds < never_seconds) fill.load_seconds += seconds;
    }
    fills.push_back(fill);
  }
  constexpr double least_gain = 0.05;
  return plan_fill(fills, least_gain).computed_blocks;
}

std::uint32_t PageStore::slots_kept_for_steps() const {
  const std::uint32_t step_blocks = options_.step_rows / options_.shape.tokens + 1;
  return stream_slots_ + rebuild_slots() + options_.layers * step_blocks;
}

void PageStore::load_ahead(Block& block) {
  make_room_of_unused(slots_kept_for_steps() + options_.layers);
  load_pages(block);
}

void PageStore::load_what_may_follow(Block& block) {
  if (options_.prefetch == PrefetchKind::off || tiers_.empty() || index_.is_root(block)) return;
  ++block.visits;
  // Where most texts went on.
  constexpr std::size_t chain_most = 64;
  std::vector<Block*> chain;
  for (const Block* at = &block; chain.size() < chain_most && !at->children.empty();) {
    Block* const next = *std::ranges::max_element(at->children, {}, &Block::visits);
    if (!next->all_pages_exist()) break;
    at = next;
    const bool resident = std::ranges::all_of(
        next->pages, [](const PageEntry& page) { return page.slot.has_value() || page.loading; });
    if (!resident) chain.push_back(next);
  }
  const std::uint32_t kept_free = slots_kept_for_steps();
  const std::uint32_t spare = pool_.free_slots() - std::min(pool_.free_slots(), kept_free);
  const std::size_t blocks = prefetch_policy_->blocks_ahead({.stored_blocks = chain.size(),
                                                             .free_slots = spare / options_.layers,
                                                             .visits = block.visits,
                                                             .continued = block.continued});
  for (std::size_t i = 0; i < blocks; ++i) {
    chain[i]->loaded_ahead = true;
    load_pages(*chain[i]);
  }
}

void PageStore::load_pages(Block& block) {
  const std::uint32_t kept_free = slots_kept_for_steps();
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    PageEntry& page = block.pages[layer];
    if (page.slot || page.loading || page.stored == 0) continue;
    if (pool_.free_slots() <= kept_free) return;
    const SlotIndex slot = *pool_.acquire();
    page.loading = true;
    const bool started =
        start_load(block, layer, slot, [this, &block, layer, slot](const Result<void>& outcome) {
          block.pages[layer].loading = false;
          if (!outcome.ok() || !keep_loaded(block, layer, slot)) pool_.release(slot);
        });
    if (started || !page.loading) continue;
    page.loading = false;
    pool_.release(slot);
    return;  // the queue is full
  }
}

/// A page that was loaded stays in its slot. False: it has another one already.
bool PageStore::keep_loaded(Block& block, std::uint32_t layer, SlotIndex slot) {
  PageEntry& page = block.pages[layer];
  if (page.slot) return false;
  page.slot = slot;
  note_in_pool(block);
  may_leave(block, layer);
  return true;
}

Result<void> PageStore::store(Block& block, std::uint32_t layer, SlotIndex slot) {
  return store(block, layer, slot, 0);
}

Result<void> PageStore::store(Block& block, std::uint32_t layer, SlotIndex slot,
                              std::size_t first_tier) {
  const auto put = [&](std::size_t tier) {
    return run([&](Done done) { return submit_put(block, layer, slot, tier, std::move(done)); });
  };
  const std::size_t disk = tiers_.size() - 1;
  for (std::size_t tier = first_tier; tier <= disk; ++tier) {
    const Result<void> outcome =
        tier == disk ? making_disk_room([&] { return put(disk); }) : put(tier);
    if (outcome.ok()) {
      block.pages[layer].stored |= bit(tier);
      ++counters_.pages_written;
      return {};
    }
    if (tier == disk) return disk_error(outcome.error());
  }
  return {};
}

Result<void> PageStore::run(const std::function<bool(Done)>& start) {
  std::optional<Result<void>> outcome;
  const Done done = [&outcome](Result<void> result) { outcome = std::move(result); };
  while (!start(done) && !outcome) wait();
  while (!outcome) wait();
  return *std::move(outcome);
}

bool PageStore::may_demote(const Block& block, std::uint32_t layer) const {
  return !tiers_.empty() && block.users == 1 && tracked_.contains(page_id(block, layer));
}

Result<void> PageStore::demote(std::span<const BlockPage> pages, const char* reason) {
  write_error_ = {};
  bool are_left = true;  // a page comes back if the queue of the next tier was full
  while (are_left && write_error_.ok()) {
    are_left = false;
    for (const BlockPage& page : pages) {
      while (write_error_.ok() && may_demote(*page.block, page.layer) &&
             !let_page_leave(*page.block, page.layer, reason, false))
        wait();
    }
    while (leaving_ > 0) wait();
    for (const BlockPage& page : pages) are_left = are_left || may_demote(*page.block, page.layer);
  }
  return write_error_;
}

Error PageStore::disk_error(const Error& error) {
  return {error.code,
          "a KV page could not be kept on disk: " + error.message +
              "; free space or give another place with --kv-disk, or raise --kv-memory"};
}

bool PageStore::keep_streamed(Block& block, std::uint32_t layer, SlotIndex slot) {
  const std::int64_t free_after = std::int64_t{pool_.free_slots()} + streaming_ - 1;
  if (free_after < std::int64_t{stream_slots_} + rebuild_slots()) return false;
  return keep_loaded(block, layer, slot);
}

void PageStore::reap() {
  for (TierState& state : tiers_) {
    std::array<TierCompletion, 16> completions;
    std::size_t count = state.tier->poll(completions);
    for (; count > 0; count = state.tier->poll(completions)) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto job = state.in_flight.extract(completions[i].ticket);
        HEADRACE_CHECK(!job.empty(), "a tier finished something that was not asked for");
        job.mapped()(std::move(completions[i].result));
      }
    }
  }
}

void PageStore::wait() {
  // The fastest one that is busy: whoever waits for another one comes back soon.
  const auto busy =
      std::ranges::find_if(tiers_, [](const TierState& tier) { return !tier.in_flight.empty(); });
  HEADRACE_CHECK(busy != tiers_.end(), "waiting for IO with none in flight");
  busy->tier->wait();
  reap();
}

}  // namespace headrace
