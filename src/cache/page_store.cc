#include "cache/page_store.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "cache/memory_plan.h"
#include "tier/disk_tier.h"

namespace headrace {
Result<std::unique_ptr<PageStore>> PageStore::open(Env& env, const PageStoreOptions& options) {
  HEADRACE_TRY_ASSIGN(const MemoryPlan plan, plan_memory(options));
  std::unique_ptr<Tier> tier;
  if (plan.stream_slots > 0) {
    HEADRACE_TRY_ASSIGN(tier, open_disk_tier(env, tier_options(options)));
  }
  HEADRACE_TRY_ASSIGN(PagePool pool, PagePool::create(options.shape, plan.slots));
  std::unique_ptr<PageStore> store(
      new PageStore(options, plan.limit_bytes, std::move(pool), std::move(tier)));
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
                     std::unique_ptr<Tier> tier)
    : options_(options),
      budget_(limit_bytes),
      pool_(std::move(pool)),
      tier_(std::move(tier)),
      policy_(new_newest_first_policy()),
      windowed_policy_(new_newest_first_policy()) {}

PageStore::~PageStore() { HEADRACE_CHECK(tracked_.empty(), "a sequence outlives its cache"); }

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

PageIdentity PageStore::identity(const PageTable& table, std::uint32_t layer,
                                 std::uint32_t block) const {
  PageIdentity identity;
  identity.key = {table.block(block).key, layer};
  identity.model = options_.model;
  identity.first_position = table.first_position(block);
  identity.shape = options_.shape;
  return identity;
}

void PageStore::track(const PageId& id, PageTable& table) {
  tracked_.emplace(id, &table);
  policy_of(id.layer).track(id);
}

void PageStore::forget(const PageId& id, PageTable& table) {
  tracked_.erase(id);
  policy_of(id.layer).untrack(id);
  PageEntry& page = table.page(id.layer, id.block);
  if (page.slot) pool_.release(*page.slot);
  if (page.stored) tier_->erase({table.block(id.block).key, id.layer});
  page = {};
}

Result<void> PageStore::demote(const PageId& id) {
  PageTable& table = *tracked_.at(id);
  PageEntry& page = table.page(id.layer, id.block);
  if (!page.stored) HEADRACE_TRY(store(table, id.layer, id.block, *page.slot));
  page.stored = true;
  pool_.release(*page.slot);
  page.slot.reset();
  policy_of(id.layer).untrack(id);
  tracked_.erase(id);
  return {};
}

std::optional<PageId> PageStore::victim() const {
  const std::optional<PageId> lasting = policy_->victim();
  return lasting ? lasting : windowed_policy_->victim();
}

Result<void> PageStore::make_room(std::uint32_t slots) {
  while (pool_.free_slots() < slots) {
    const std::optional<PageId> victim = this->victim();
    if (!victim || tier_ == nullptr) {
      return Error{ErrorCode::out_of_budget, "the KV memory of " +
                                                 format_byte_count(budget_.limit_bytes()) +
                                                 " is taken by the open pages of other sequences; "
                                                 "raise --kv-memory or run fewer at once"};
    }
    HEADRACE_TRY(demote(*victim));
  }
  return {};
}

bool PageStore::start_load(const PageTable& table, std::uint32_t layer, std::uint32_t block,
                           SlotIndex slot, Done done) {
  const PageEntry& page = table.page(layer, block);
  Result<TierTicket> ticket =
      tier_->submit_get(identity(table, layer, block), page.checksum, pool_.bytes(slot));
  if (ticket.ok()) {
    in_flight_.emplace(*ticket, std::move(done));
    return true;
  }
  if (ticket.error().code != ErrorCode::out_of_budget) done(std::move(ticket).error());
  return false;
}

Result<void> PageStore::store(const PageTable& table, std::uint32_t layer, std::uint32_t block,
                              SlotIndex slot) {
  bool finished = false;
  Result<void> outcome;
  while (true) {
    Result<TierTicket> ticket = tier_->submit_put(
        identity(table, layer, block), table.page(layer, block).checksum, pool_.bytes(slot));
    if (ticket.ok()) {
      in_flight_.emplace(*ticket, [&](Result<void> result) {
        finished = true;
        outcome = std::move(result);
      });
      break;
    }
    if (ticket.error().code != ErrorCode::out_of_budget || in_flight_.empty())
      return std::move(ticket).error();
    wait();
  }
  while (!finished) wait();
  if (!outcome.ok()) {
    return Error{outcome.error().code,
                 "a KV page could not be kept on disk: " + outcome.error().message +
                     "; free space or give another place with --kv-disk, or raise --kv-memory"};
  }
  ++counters_.pages_written;
  return {};
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
