// PageStore: the pool and the tier below it under one budget. Hands out slots (letting sealed pages
// go to the tier when none is free), loads pages back, and keeps the books.
//
// Used by the engine loop alone; IO runs on the tier's threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/budget.h"
#include "codec/sealed_page.h"
#include "env/env.h"
#include "headrace/engine.h"
#include "page/page_table.h"
#include "page/pool.h"
#include "policy/eviction.h"
#include "tier/tier.h"

namespace headrace {

struct PageStoreOptions {
  PageShape shape;
  std::uint32_t layers = 0;
  /// Positions that a row reads in each layer, its own included; 0: all. Empty: all in every layer.
  std::vector<std::uint32_t> windows = {};
  std::uint32_t step_rows = 512;  ///< most rows of a step
  std::uint32_t context = 0;      ///< most tokens of a sequence
  std::uint32_t sequences = 4;    ///< most of them alive at once
  /// Limit of pool + metadata + IO buffers. 0: what full contexts of all sequences need.
  std::uint64_t memory_bytes = 0;
  std::string disk_directory;    ///< used only when not everything fits
  std::uint64_t disk_bytes = 0;  ///< 0: no limit but the device
  Digest128 model;

  std::uint32_t window(std::uint32_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool has_windows() const {
    return std::ranges::any_of(windows, [](std::uint32_t window) { return window != 0; });
  }
  /// First block that a row at `position` reads in a layer.
  std::uint32_t first_block(std::uint32_t layer, std::uint32_t position) const {
    const std::uint32_t size = window(layer);
    return size == 0 || position < size ? 0 : (position - size + 1) / shape.tokens;
  }
};

class PageStore {
 public:
  /// Errors: out_of_budget (the limit is below what one step needs; the message says how much that
  /// is), io (the disk directory cannot be used).
  static Result<std::unique_ptr<PageStore>> open(Env& env, const PageStoreOptions& options);
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  const PageStoreOptions& options() const { return options_; }
  PagePool& pool() { return pool_; }
  Budget& budget() { return budget_; }

  /// True when full contexts of all sequences fit into the pool, so that nothing ever leaves it.
  bool holds_everything() const { return tier_ == nullptr; }
  /// Slots that stay free for pages streaming through and for one replay, when not everything fits.
  std::uint32_t stream_slots() const { return stream_slots_; }
  /// Slots that stay free for the open pages of one rebuild (replay.h) besides.
  std::uint32_t rebuild_slots() const {
    return tier_ != nullptr && options_.has_windows() ? options_.layers : 0;
  }
  std::uint32_t blocks_max() const { return blocks_max_; }
  /// Slots that make_room() can provide: the free ones and those of pages that may leave.
  std::uint32_t slots_available() const {
    const std::size_t evictable = tier_ == nullptr ? 0 : tracked_.size();
    return pool_.free_slots() + static_cast<std::uint32_t>(evictable);
  }

  /// Lets sealed pages go to the tier until `slots` slots are free. Waits for the writes.
  /// Errors: out_of_budget (tier full), io, with what to do.
  Result<void> make_room(std::uint32_t slots);

  /// Bookkeeping for one more sequence. Errors: out_of_budget (options.sequences live already).
  Result<void> admit_sequence();
  void dismiss_sequence() { --live_sequences_; }
  /// Bookkeeping for the sequence of a rebuild, of which there is one at a time.
  void admit_rebuild();
  void dismiss_rebuild() { rebuilding_ = false; }

  /// The identity of a page of a sealed block.
  PageIdentity identity(const PageTable& table, std::uint32_t layer, std::uint32_t block) const;

  /// A sealed resident page may be let go from now on. `table` must stay in place until forget().
  void track(const PageId& id, PageTable& table);
  /// No row of its sequence will read this page again: frees its slot and its place in the tier.
  void forget(const PageId& id, PageTable& table);

  using Done = std::function<void(Result<void>)>;
  /// Starts to read a stored page into `slot`. `done` is called from reap() or wait(). False: the
  /// queue is full, or the tier does not have the page any more (then done was called).
  bool start_load(const PageTable& table, std::uint32_t layer, std::uint32_t block, SlotIndex slot,
                  Done done);
  /// Writes a page of a sealed block from `slot` and waits until it is stored.
  Result<void> store(const PageTable& table, std::uint32_t layer, std::uint32_t block,
                     SlotIndex slot);
  /// Handles what the tier has finished.
  void reap();
  /// Waits until the tier finishes something, and handles it. Something must be in flight.
  void wait();

  KvStats stats() const;
  KvStats& counters() { return counters_; }

 private:
  PageStore(const PageStoreOptions& options, std::uint64_t limit_bytes, PagePool pool,
            std::unique_ptr<Tier> tier);

  Result<void> demote(const PageId& id);
  EvictionPolicy& policy_of(std::uint32_t layer) {
    return options_.window(layer) == 0 ? *policy_ : *windowed_policy_;
  }
  std::optional<PageId> victim() const;

  const PageStoreOptions options_;
  std::uint32_t blocks_max_ = 0;
  std::uint32_t stream_slots_ = 0;
  std::uint32_t live_sequences_ = 0;
  bool rebuilding_ = false;
  Budget budget_;
  std::vector<Reservation> reservations_;
  PagePool pool_;
  std::unique_ptr<Tier> tier_;
  std::unique_ptr<EvictionPolicy> policy_;
  /// Pages of windowed layers soon go for good, so writing one is mostly in vain: they leave last.
  std::unique_ptr<EvictionPolicy> windowed_policy_;
  std::map<PageId, PageTable*> tracked_;
  std::unordered_map<TierTicket, Done> in_flight_;
  KvStats counters_;
};

}  // namespace headrace
