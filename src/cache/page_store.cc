#include "cache/page_store.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "cache/memory_plan.h"
#include "tier/disk_tier.h"

namespace headrace {
namespace {

HashSecret new_secret(Env& env) {
  HashSecret secret;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(env.random() >> 32);
  }
  return secret;
}

Digest128 settings_digest(const PageStoreOptions& options) {
  Hasher hasher;
  hasher.value(options.model).value(options.numerics).value(options.layers);
  hasher.value(options.shape.tokens).value(options.shape.kv_heads).value(options.shape.head_dim);
  return hasher.value(options.shape.type).finish();
}

}  // namespace

Result<std::unique_ptr<PageStore>> PageStore::open(Env& env, const PageStoreOptions& options) {
  HEADRACE_TRY_ASSIGN(const MemoryPlan plan, plan_memory(options));
  std::unique_ptr<Tier> tier;
  if (plan.stream_slots > 0) {
    HEADRACE_TRY_ASSIGN(tier, open_disk_tier(env, tier_options(options)));
  }
  HEADRACE_TRY_ASSIGN(PagePool pool, PagePool::create(options.shape, plan.slots));
  BlockIndexOptions index;
  index.layers = options.layers;
  index.tokens_per_block = options.shape.tokens;
  index.blocks_max = plan.index_blocks;
  index.secret = new_secret(env);
  index.settings = settings_digest(options);
  std::unique_ptr<PageStore> store(
      new PageStore(options, plan.limit_bytes, std::move(pool), std::move(tier), index));
  store->stream_slots_ = plan.stream_slots;
  store->blocks_max_ = plan.blocks_max;
  HEADRACE_TRY_ASSIGN(Reservation pool_bytes, store->budget_.reserve(plan.pool_bytes, "KV pool"));
  HEADRACE_TRY_ASSIGN(Reservation books,
                      store->budget_.reserve(plan.bookkeeping_bytes, "KV page bookkeeping"));
  HEADRACE_TRY_ASSIGN(Reservation io, store->budget_.reserve(plan.io_bytes, "KV IO buffers"));
  if (store->tier_ != nullptr) {
    HEADRACE_CHECK(store->tier_->memory_bytes() <= plan.io_bytes,
                   "the tier holds more memory than was planned");
  }
  store->reservations_.push_back(std::move(pool_bytes));
  store->reservations_.push_back(std::move(books));
  store->reservations_.push_back(std::move(io));
  return store;
}

PageStore::PageStore(const PageStoreOptions& options, std::uint64_t limit_bytes, PagePool pool,
                     std::unique_ptr<Tier> tier, const BlockIndexOptions& index)
    : options_(options),
      budget_(limit_bytes),
      pool_(std::move(pool)),
      tier_(std::move(tier)),
      index_(index),
      policy_(new_newest_first_policy()),
      windowed_policy_(new_newest_first_policy()),
      block_policy_(new_lru_policy()) {}

PageStore::~PageStore() {
  HEADRACE_CHECK(tracked_.empty() && live_sequences_ == 0, "a sequence outlives its cache");
  while (!in_flight_.empty()) wait();
}

Result<void> PageStore::admit_sequence() {
  if (live_sequences_ == options_.sequences) {
    return Error{ErrorCode::out_of_budget,
                 "this engine holds " + std::to_string(options_.sequences) +
                     " sequences already; end one before starting another"};
  }
  ++live_sequences_;
  return {};
}

void PageStore::admit_rebuild() {
  HEADRACE_CHECK(!rebuilding_ && options_.has_windows(), "nothing was reserved for a rebuild");
  rebuilding_ = true;
}

std::uint32_t PageStore::slots_available() const {
  const std::size_t leaving = (tier_ == nullptr ? 0 : tracked_.size()) + unused_resident_pages_;
  return pool_.free_slots() + static_cast<std::uint32_t>(leaving);
}

PageIdentity PageStore::identity(const Block& block, std::uint32_t layer) const {
  PageIdentity identity;
  identity.key = {block.key, layer};
  identity.model = options_.model;
  identity.first_position = block.first_position;
  identity.shape = options_.shape;
  return identity;
}

PageId PageStore::page_id(const Block& block, std::uint32_t layer) {
  // The policies order the pages of all texts by their place in the text.
  return {block.id, block.first_position, layer};
}

void PageStore::track(Block& block, std::uint32_t layer) {
  const PageId id = page_id(block, layer);
  if (tracked_.emplace(id, &block).second) policy_of(layer).track(id);
}

void PageStore::untrack(Block& block, std::uint32_t layer) {
  const PageId id = page_id(block, layer);
  if (tracked_.erase(id) > 0) policy_of(layer).untrack(id);
}

void PageStore::free_slot(PageEntry& page) {
  pool_.release(*page.slot);
  page.slot.reset();
}

// --- Making room ------------------------------------------------------------------------------

Result<void> PageStore::make_room(std::uint32_t slots) {
  write_error_ = {};
  while (pool_.free_slots() < slots) {
    if (!write_error_.ok()) return write_error_;
    if (pool_.free_slots() + leaving_ < slots &&
        (let_unused_page_leave() || let_used_page_leave())) {
      continue;
    }
    if (!write_error_.ok()) return write_error_;
    if (leaving_ == 0) {
      return Error{ErrorCode::out_of_budget, "the KV memory of " +
                                                 format_byte_count(budget_.limit_bytes()) +
                                                 " is taken by the open pages of other sequences; "
                                                 "raise --kv-memory or run fewer at once"};
    }
    wait();
  }
  return {};
}

void PageStore::make_room_of_unused(std::uint32_t slots) {
  while (pool_.free_slots() < slots) {
    if (pool_.free_slots() + leaving_ < slots && let_unused_page_leave()) continue;
    if (leaving_ == 0) return;
    wait();
  }
}

/// Starts to let a page go. False: the tier has no room in its queue, wait first.
bool PageStore::let_page_leave(Block& block, std::uint32_t layer) {
  PageEntry& page = block.pages[layer];
  if (!page.writing && page.stored) {
    free_slot(page);
  } else if (page.writing || start_put(block, layer)) {
    page.leaving = true;
    ++leaving_;
  } else {
    return false;
  }
  if (block.users > 0) {
    untrack(block, layer);
  } else {
    --unused_resident_pages_;
  }
  return true;
}

bool PageStore::let_used_page_leave() {
  if (tier_ == nullptr) return false;
  const std::optional<PageId> lasting = policy_->victim();
  const std::optional<PageId> victim = lasting ? lasting : windowed_policy_->victim();
  return victim && let_page_leave(*tracked_.at(*victim), victim->layer);
}

bool PageStore::let_unused_page_leave() {
  if (unused_resident_pages_ == 0) return false;
  const auto leaves_pool = [this](BlockId id) {
    const Block& block = *sealed_.at(id);
    if (block.users > 0) return false;
    return tier_ == nullptr ? may_be_dropped(block)
                            : std::ranges::any_of(block.pages, [](const PageEntry& page) {
                                return page.slot && !page.leaving;
                              });
  };
  const std::optional<BlockId> victim = block_policy_->victim(leaves_pool);
  if (!victim) return false;
  Block& block = *sealed_.at(*victim);
  if (tier_ == nullptr) {
    drop(block);
    return true;
  }
  for (std::uint32_t layer = options_.layers; layer-- > 0;) {
    const PageEntry& page = block.pages[layer];
    if (page.slot && !page.leaving) return let_page_leave(block, layer);
  }
  return false;
}

// --- IO ---------------------------------------------------------------------------------------

/// Writes a resident page. False: the queue is full.
bool PageStore::start_put(Block& block, std::uint32_t layer) {
  PageEntry& page = block.pages[layer];
  Result<TierTicket> ticket =
      tier_->submit_put(identity(block, layer), page.checksum, pool_.bytes(*page.slot));
  if (!ticket.ok()) {
    if (in_flight_.empty()) write_error_ = std::move(ticket).error();
    return false;
  }
  page.writing = true;
  in_flight_.emplace(*ticket, [this, &block, layer](Result<void> outcome) {
    finish_put(block, layer, std::move(outcome));
  });
  return true;
}

void PageStore::finish_put(Block& block, std::uint32_t layer, Result<void> outcome) {
  PageEntry& page = block.pages[layer];
  const bool no_room = !outcome.ok() && outcome.error().code == ErrorCode::out_of_budget;
  // Still marked as being written, so that this block is not what makes room.
  const bool again = page.leaving && no_room && free_disk_room();
  page.writing = false;
  if (again && start_put(block, layer)) return;
  const bool leaving = std::exchange(page.leaving, false);
  if (leaving) --leaving_;
  if (outcome.ok()) {
    page.stored = true;
    ++counters_.pages_written;
    if (leaving) free_slot(page);
  } else if (!leaving) {
    // It stays where it is.
  } else if (block.users > 0) {
    track(block, layer);
    write_error_ = disk_error(outcome.error());
  } else {
    // Nobody waits for this block: its text can be read again.
    free_slot(page);
  }
}

bool PageStore::start_load(Block& block, std::uint32_t layer, SlotIndex slot, Done done) {
  PageEntry& page = block.pages[layer];
  Result<TierTicket> ticket =
      tier_ == nullptr
          ? Error{ErrorCode::not_found, "there is no tier that could have this page"}
          : tier_->submit_get(identity(block, layer), page.checksum, pool_.bytes(slot));
  if (ticket.ok()) {
    in_flight_.emplace(*ticket, [&page, done = std::move(done)](Result<void> outcome) {
      if (!outcome.ok()) page.stored = false;  // the tier has dropped it
      done(std::move(outcome));
    });
    return true;
  }
  if (ticket.error().code != ErrorCode::out_of_budget) {
    page.stored = false;
    done(std::move(ticket).error());
  }
  return false;
}

Result<void> PageStore::store(Block& block, std::uint32_t layer, SlotIndex slot) {
  PageEntry& page = block.pages[layer];
  while (true) {
    bool finished = false;
    Result<void> outcome;
    Result<TierTicket> ticket =
        tier_->submit_put(identity(block, layer), page.checksum, pool_.bytes(slot));
    if (ticket.ok()) {
      in_flight_.emplace(*ticket, [&](Result<void> result) {
        finished = true;
        outcome = std::move(result);
      });
      while (!finished) wait();
      if (outcome.ok()) {
        page.stored = true;
        ++counters_.pages_written;
        return {};
      }
      if (outcome.error().code == ErrorCode::out_of_budget && free_disk_room()) continue;
      return disk_error(outcome.error());
    }
    if (ticket.error().code != ErrorCode::out_of_budget || in_flight_.empty()) {
      return std::move(ticket).error();
    }
    wait();
  }
}

Error PageStore::disk_error(const Error& error) {
  return {error.code,
          "a KV page could not be kept on disk: " + error.message +
              "; free space or give another place with --kv-disk, or raise --kv-memory"};
}

bool PageStore::keep_streamed(Block& block, std::uint32_t layer, SlotIndex slot) {
  PageEntry& page = block.pages[layer];
  const std::int64_t free_after = std::int64_t{pool_.free_slots()} + streaming_ - 1;
  if (page.slot || free_after < std::int64_t{stream_slots_} + rebuild_slots()) return false;
  page.slot = slot;
  if (block.users > 0) {
    track(block, layer);
  } else {
    ++unused_resident_pages_;
  }
  return true;
}

void PageStore::reap() {
  if (tier_ == nullptr) return;
  std::array<TierCompletion, 16> completions;
  for (std::size_t count = tier_->poll(completions); count > 0; count = tier_->poll(completions)) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto job = in_flight_.extract(completions[i].ticket);
      HEADRACE_CHECK(!job.empty(), "the tier finished something that was not asked for");
      job.mapped()(std::move(completions[i].result));
    }
  }
}

void PageStore::wait() {
  HEADRACE_CHECK(!in_flight_.empty(), "waiting for IO with none in flight");
  tier_->wait();
  reap();
}

KvStats PageStore::stats() const {
  KvStats stats = counters_;
  stats.kv_bytes_limit = budget_.limit_bytes();
  const std::uint64_t pool_bytes = pool_.slots() * PagePool::slot_bytes(options_.shape);
  stats.kv_bytes_peak =
      budget_.peak_bytes() - pool_bytes + pool_.slots_peak() * PagePool::slot_bytes(options_.shape);
  if (tier_ != nullptr) {
    const TierStats tier = tier_->stats();
    stats.pages_damaged = tier.damaged;
    stats.disk_bytes_peak = tier.bytes_peak;
  }
  return stats;
}

}  // namespace headrace
