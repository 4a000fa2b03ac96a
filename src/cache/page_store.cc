#include "cache/page_store.h"

#include <algorithm>

#include "base/check.h"
#include "base/no_memory.h"
#include "cache/memory_plan.h"
#include "cache/store_secret.h"
#include "codec/key_sketch.h"
#include "tier/disk_tier.h"

namespace headrace {
namespace {

Digest128 settings_digest(const PageStoreOptions& options) {
  Hasher hasher;
  hasher.value(options.model).value(options.numerics).value(options.layers);
  if (!options.codec->is_lossless()) hasher.value(options.codec->id());
  if (const Digest128 codec = options.codec->settings(); codec != Digest128()) hasher.value(codec);
  hasher.value(options.shape.tokens).value(options.shape.kv_heads).value(options.shape.head_dim);
  return hasher.value(options.shape.type).finish();
}

}  // namespace

Result<std::unique_ptr<PageStore>> PageStore::open(Env& env, const PageStoreOptions& options) {
  HEADRACE_TRY_ASSIGN(const MemoryPlan plan, plan_memory(options));
  std::vector<std::unique_ptr<Tier>> tiers;
  DiskTier* disk_tier = nullptr;
  // While the engine waits for pages, decoding them may have every core.
  const auto threads = static_cast<std::uint32_t>(std::min<std::size_t>(env.hardware_threads(), 8));
  if (plan.stream_slots > 0 && options.host_bytes > 0) {
    HostTierOptions host_tier = host_options(options);
    host_tier.threads = threads;
    HEADRACE_TRY_ASSIGN(std::unique_ptr<Tier> host, open_host_tier(env, host_tier));
    tiers.push_back(std::move(host));
  }
  if (plan.stream_slots > 0) {
    DiskTierOptions disk_options = tier_options(options);
    disk_options.io_threads = threads;
    HEADRACE_TRY_ASSIGN(std::unique_ptr<DiskTier> disk, open_disk_tier(env, disk_options));
    disk_tier = disk.get();
    tiers.push_back(std::move(disk));
  }
  HEADRACE_TRY_ASSIGN(PagePool pool, PagePool::create(options.shape, plan.slots, plan.slots_most));
  BlockIndexOptions index;
  index.layers = options.layers;
  index.tokens_per_block = options.shape.tokens;
  index.blocks_max = plan.index_blocks;
  index.secret = new_secret(env);
  if (options.keep_disk) {
    HEADRACE_TRY_ASSIGN(index.secret, store_secret(env, *disk_tier));
  }
  index.settings = settings_digest(options);
  std::unique_ptr<PageStore> store(
      new PageStore(env, options, plan.limit_bytes, std::move(pool), std::move(tiers), index));
  store->disk_ = disk_tier;
  store->stream_slots_ = plan.stream_slots;
  store->blocks_max_ = plan.blocks_max;
  store->slots_least_ = plan.slots_least;
  store->slot_books_bytes_ = plan.slot_books_bytes;
  HEADRACE_TRY(store->reserve_sketches(plan.sketches));
  HEADRACE_TRY_ASSIGN(store->pool_reservation_, store->budget_.reserve(plan.pool_bytes, "KV pool"));
  HEADRACE_TRY_ASSIGN(store->books_reservation_,
                      store->budget_.reserve(plan.bookkeeping_bytes, "KV page bookkeeping"));
  HEADRACE_TRY_ASSIGN(store->io_reservation_,
                      store->budget_.reserve(plan.io_bytes, "KV IO buffers"));
  std::uint64_t tier_bytes = 0;
  for (const TierState& state : store->tiers_) tier_bytes += state.tier->memory_bytes();
  HEADRACE_CHECK(tier_bytes <= plan.io_bytes, "the tiers hold more memory than was planned");
  if (options.keep_disk) {
    const BreakOffOnThrow guard(*store);
    HEADRACE_TRY(store->recover());
  }
  return store;
}

PageStore::PageStore(Env& env, const PageStoreOptions& options, std::uint64_t limit_bytes,
                     PagePool pool, std::vector<std::unique_ptr<Tier>> tiers,
                     const BlockIndexOptions& index)
    : env_(env),
      options_(options),
      budget_(limit_bytes),
      pool_(std::move(pool)),
      index_(index),
      policy_(new_newest_first_policy()),
      windowed_policy_(new_newest_first_policy()),
      pool_policy_(new_cache_policy(options.policy, pool_.slots() / options.layers + 1)),
      store_policy_(new_cache_policy(options.policy, index.blocks_max)),
      prefetch_policy_(new_prefetch_policy(options.prefetch)) {
  for (std::unique_ptr<Tier>& tier : tiers) tiers_.push_back({.tier = std::move(tier)});
}

std::uint32_t PageStoreOptions::tokens_read_exactly() const {
  switch (attention.mode) {
    case AttentionMode::exact:
      break;
    case AttentionMode::recall:
      return attention.recall_tokens;
    case AttentionMode::window:
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(
          context, std::uint64_t{attention.recall_first} + attention.window_tokens));
    case AttentionMode::sparse:
      return attention.sparse_tokens;
  }
  return context;
}

std::uint32_t PageStoreOptions::newest_always_read() const {
  switch (attention.mode) {
    case AttentionMode::exact:
      break;
    case AttentionMode::recall:
      return attention.recall_newest;
    case AttentionMode::window:
      return attention.window_tokens;
    case AttentionMode::sparse:
      return attention.sparse_tokens;  // no less than what is left beside sample and heavy ones
  }
  return 0;
}

Result<void> PageStore::reserve_sketches(std::uint32_t count) {
  if (count == 0) return {};
  HEADRACE_TRY_ASSIGN(sketches_, AlignedBuffer::allocate(std::uint64_t{count} * options_.layers *
                                                         key_sketch_bytes(options_.shape)));
  sketch_scratch_.resize(key_sketch_scratch_floats(options_.shape));
  for (std::uint32_t i = count; i-- > 0;) free_sketches_.push_back(i);
  return {};
}

PageStore::~PageStore() {
  HEADRACE_CHECK(live_sequences_ == 0 || is_broken_off_, "a sequence outlives its cache");
  if (!is_broken_off_) static_cast<void>(has_memory_for([this] { end(); }));
  // Before what is in flight is forgotten: its bytes may be held there.
  for (TierState& state : tiers_) state.tier.reset();
}

void PageStore::end() {
  HEADRACE_CHECK(tracked_.empty(), "a sequence outlives its cache");
  if (options_.keep_disk) flush();
  while (anything_in_flight()) wait();
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
  HEADRACE_CHECK(!rebuilding_ && options_.may_rebuild(), "nothing was reserved for a rebuild");
  rebuilding_ = true;
}

std::uint32_t PageStore::slots_available() const {
  const bool may_leave = !tiers_.empty() || options_.keeps_text_only;
  const std::size_t leaving = (may_leave ? tracked_.size() : 0) + unused_resident_pages_;
  return pool_.free_slots() + slots_lent() + static_cast<std::uint32_t>(leaving);
}

PageIdentity PageStore::identity(const Block& block, std::uint32_t layer) const {
  PageIdentity identity;
  identity.key = {block.key, layer};
  identity.model = options_.model;
  identity.first_position = block.first_position;
  identity.shape = options_.shape;
  identity.tokens_held = static_cast<std::uint32_t>(block.tokens.size());
  return identity;
}

PageId PageStore::page_id(const Block& block, std::uint32_t layer) {
  // The policies order the pages of all texts by their place in the text.
  return {block.id, block.first_position, layer};
}

void PageStore::pin(Block& block) {
  if (block.pins++ > 0) return;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) untrack(block, layer);
}

void PageStore::unpin(Block& block) {
  if (--block.pins > 0 || !block.sealed || block.users == 0) return;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer)
    if (block.pages[layer].slot) track(block, layer);
}

void PageStore::track(Block& block, std::uint32_t layer) {
  // Where only the text is kept, what recall has written is lost with its page.
  if (block.pins > 0 || (options_.keeps_text_only && block.is_private)) return;
  const PageId id = page_id(block, layer);
  if (tracked_.emplace(id, &block).second) policy_of(layer).track(id);
}

void PageStore::untrack(Block& block, std::uint32_t layer) {
  const PageId id = page_id(block, layer);
  if (tracked_.erase(id) > 0) policy_of(layer).untrack(id);
}

/// A sealed page is resident: it may leave to make room.
void PageStore::may_leave(Block& block, std::uint32_t layer) {
  if (block.users > 0) {
    track(block, layer);
  } else {
    ++unused_resident_pages_;
  }
}

void PageStore::may_leave_no_more(Block& block, std::uint32_t layer) {
  if (block.users > 0) {
    untrack(block, layer);
  } else {
    --unused_resident_pages_;
  }
}

void PageStore::free_slot(PageEntry& page) {
  pool_.release(*page.slot);
  page.slot.reset();
}

/// A slot of a sealed block.
void PageStore::free_slot(Block& block, PageEntry& page) {
  free_slot(page);
  note_left_pool(block);
}

Result<void> PageStore::set_memory_bytes(std::uint64_t bytes) {
  // Every slot has its share of the books.
  const std::uint64_t books = books_reservation_.bytes() - pool_.slots() * slot_books_bytes_;
  const std::uint64_t fixed = books + io_reservation_.bytes();
  const std::uint64_t slot_bytes = PagePool::slot_bytes(options_.shape);
  const std::uint64_t per_slot = slot_bytes + slot_books_bytes_;
  const std::uint64_t least = fixed + slots_least_ * per_slot;
  if (bytes < least) {
    return Error{ErrorCode::out_of_budget, "a KV memory of " + format_byte_count(bytes) +
                                               " is too small for one step of this engine; give "
                                               "at least " +
                                               std::to_string((least + 1023) / 1024) + "KiB"};
  }
  const auto slots = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(pool_.slots_most(), (bytes - fixed) / per_slot));
  if (slots < pool_.slots()) {
    HEADRACE_TRY(make_room(pool_.slots() - slots + stream_slots_ + rebuild_slots()));
  }
  pool_.set_slots(slots);
  pool_reservation_ = {};
  books_reservation_ = {};
  budget_.set_limit_bytes(bytes);
  HEADRACE_TRY_ASSIGN(pool_reservation_, budget_.reserve(slots * slot_bytes, "KV pool"));
  HEADRACE_TRY_ASSIGN(books_reservation_,
                      budget_.reserve(books + slots * slot_books_bytes_, "KV page bookkeeping"));
  return {};
}

Result<void> PageStore::set_disk_bytes(std::uint64_t bytes) {
  if (disk_ == nullptr) return {};
  return making_disk_room([&] { return disk_->set_limit_bytes(bytes); });
}

// --- Making room ------------------------------------------------------------------------------

Result<void> PageStore::make_room(std::uint32_t slots) {
  write_error_ = {};
  while (pool_.free_slots() < slots) {
    if (!write_error_.ok()) break;
    if (pool_.free_slots() + leaving_ < slots &&
        (let_unused_page_leave() || let_used_page_leave())) {
      continue;
    }
    if (!write_error_.ok()) break;
    if (!anything_in_flight()) {  // else a tier's queue may be full for now
      if (take_back_slots()) continue;
      if (options_.keeps_text_only) {
        return Error{ErrorCode::out_of_budget,
                     "the KV memory of " + format_byte_count(budget_.limit_bytes()) +
                         " does not hold this text, and --kv-evicted recipe keeps nothing "
                         "elsewhere; raise --kv-memory or use --kv-evicted demote"};
      }
      return Error{ErrorCode::out_of_budget, "the KV memory of " +
                                                 format_byte_count(budget_.limit_bytes()) +
                                                 " is taken by the open pages of other sequences; "
                                                 "raise --kv-memory or run fewer at once"};
    }
    wait();
  }
  // A step must not begin with pages that leave in its middle, nor hear of writes before it.
  while (leaving_ > 0) wait();
  return pool_.free_slots() < slots ? write_error_ : Result<void>();
}

void PageStore::tidy_up() {
  constexpr std::uint64_t compaction_bytes = 4 << 20;
  if (disk_ != nullptr && options_.keep_disk) disk_->compact(compaction_bytes);
}

void PageStore::make_room_of_unused(std::uint32_t slots) {
  while (pool_.free_slots() + leaving_ < slots) {
    if (let_unused_page_leave()) continue;
    if (unused_resident_pages_ == 0 || !anything_in_flight()) break;
    wait();
  }
  while (leaving_ > 0) wait();
}

/// Starts to let a page go. False: the tier has no room in its queue, wait first.
bool PageStore::let_page_leave(Block& block, std::uint32_t layer, const char* reason,
                               bool tells_borrowers) {
  PageEntry& page = block.pages[layer];
  const bool leaves_now = options_.keeps_text_only || (!page.writing && page.stored);
  if (!leaves_now && !page.writing && !start_put(block, layer)) return false;
  for (SlotBorrower* const borrower : borrowers_)
    if (tells_borrowers) borrower->page_leaves(block, layer);
  if (leaves_now) {
    free_slot(block, page);
  } else {
    page.leaving = true;
    ++leaving_;
    note_left_pool(block);
  }
  may_leave_no_more(block, layer);
  tell_eviction(block, layer, 0, static_cast<std::uint32_t>(block.tokens.size()), 0, reason);
  return true;
}

void PageStore::tell_eviction(const Block& block, std::uint32_t layer, std::uint32_t first_token,
                              std::uint32_t tokens, double mass, const char* reason) const {
  if (!options_.on_eviction) return;
  const PageEntry& page = block.pages[layer];
  const bool is_on_host = tiers_.size() > 1 && (page.stored & 1) != 0;
  const bool is_kept = page.stored != 0 || page.writing;
  options_.on_eviction({.layer = layer,
                        .first_position = block.first_position + first_token,
                        .tokens = std::span(block.tokens).subspan(first_token, tokens),
                        .mass = mass,
                        .reason = reason,
                        .to = is_on_host ? "host"
                              : is_kept  ? "disk"
                                         : "text"});
}

bool PageStore::let_used_page_leave() {
  if (tiers_.empty() && !options_.keeps_text_only) return false;
  const std::optional<PageId> lasting = policy_->victim();
  const std::optional<PageId> victim = lasting ? lasting : windowed_policy_->victim();
  return victim && let_page_leave(*tracked_.at(*victim), victim->layer, "newest first");
}

bool PageStore::take_back_slots() {
  if (lent_ == 0) return false;
  for (SlotBorrower* const borrower : borrowers_) borrower->give_back();
  return true;
}

std::uint32_t PageStore::slots_to_lend(std::uint32_t slots_kept_free) const {
  std::uint64_t kept = slots_kept_free;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const std::uint32_t window = options_.window(layer);
    kept += std::uint64_t{live_sequences_} *
            (1 + (window == 0 ? 0 : window / options_.shape.tokens + 1));
  }
  const std::uint64_t slots = pool_.slots();
  return static_cast<std::uint32_t>((slots - std::min(slots, kept)) /
                                    std::max(live_sequences_, 1U));
}

bool PageStore::let_unused_page_leave() {
  if (unused_resident_pages_ == 0) return false;
  const auto leaves_pool = [this](BlockId id) {
    const Block& block = *sealed_.at(id);
    if (block.users > 0) return false;
    return tiers_.empty() ? may_be_dropped(block) : block.any_page_resident();
  };
  const std::optional<BlockId> victim = pool_policy_->victim(leaves_pool);
  if (!victim) return false;
  Block& block = *sealed_.at(*victim);
  if (tiers_.empty()) {
    drop(block);
    return true;
  }
  for (std::uint32_t layer = options_.layers; layer-- > 0;) {
    const PageEntry& page = block.pages[layer];
    if (page.slot && !page.leaving) return let_page_leave(block, layer, "nobody uses them");
  }
  return false;
}

KvStats PageStore::stats() const {
  KvStats stats = counters_;
  stats.kv_bytes_limit = budget_.limit_bytes();
  stats.kv_bytes_peak = books_reservation_.bytes() + io_reservation_.bytes() +
                        pool_.slots_peak() * PagePool::slot_bytes(options_.shape);
  for (const TierState& state : tiers_) stats.pages_damaged += state.tier->stats().damaged;
  if (!tiers_.empty()) stats.disk_bytes_peak = tiers_.back().tier->stats().bytes_peak;
  return stats;
}

}  // namespace headrace
