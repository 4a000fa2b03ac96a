// PageStore: the blocks of all sequences, the pool and the tiers below it, under one budget. Hands
// out slots (letting pages go to a tier when none is free), loads pages back, shares sealed blocks,
// and keeps the books.
//
// A sealed block that no sequence uses stays until its room is needed, so that a text which begins
// alike finds it; children leave before their parents.
//
// Used by the engine loop alone; IO runs on the tiers' threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/budget.h"
#include "cache/block_record.h"
#include "cache/session_record.h"
#include "codec/codec.h"
#include "env/env.h"
#include "headrace/engine.h"
#include "index/block_index.h"
#include "page/page_stream.h"
#include "page/page_table.h"
#include "page/pool.h"
#include "policy/cache_policy.h"
#include "policy/eviction.h"
#include "policy/fill_plan.h"
#include "policy/prefetch_policy.h"
#include "tier/disk_tier.h"

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
  std::string disk_directory;
  std::uint64_t disk_bytes = 0;  ///< 0: no limit but the device
  bool disk_direct = false;      ///< past the system's cache
  const Codec* disk_codec = &raw_codec();
  /// Of memory_bytes, for pages that are kept encoded in memory. 0: no such tier.
  std::uint64_t host_bytes = 0;
  const Codec* host_codec = &raw_codec();
  bool write_through = false;    ///< pages are written as soon as they are sealed
  bool keeps_text_only = false;  ///< of pages that leave: no tier has them
  bool keep_disk = false;        ///< what is on disk stays for the next process
  /// Blocks that no sequence uses stay for texts that begin alike.
  bool reuse = true;
  PrefetchKind prefetch = PrefetchKind::off;
  CachePolicyKind policy = CachePolicyKind::lru;  ///< which of those go first
  /// Lossy codecs define the value of a page when its block is full.
  const Codec* codec = &raw_codec();
  AttentionOptions attention;
  /// Tokens that a text may have and be read exactly: behind them each is read by itself, as if it
  /// were drawn.
  std::uint32_t exact_tokens_most = 0xFFFF'FFFF;
  EvictionCallback on_eviction = {};
  /// Makes what weighs the tokens of a text, in order, where recall keeps groups. Null: all are 1.
  std::function<std::function<float(TokenId)>()> new_token_weight = {};
  Digest128 model;  ///< of the model file
  Digest128
      numerics;  ///< of what else the bytes of pages depend on: kernels, settings of the model

  std::uint32_t window(std::uint32_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  /// Bytes of the hidden states of a block of one sequence; 0: they are not kept.
  std::uint64_t hidden_block_bytes() const {
    return std::uint64_t{layers} * shape.tokens * codec->hidden_row_bytes();
  }
  bool recalls() const { return attention.mode == AttentionMode::recall; }
  /// Whether steps that draw a token read a part of the tokens.
  bool reads_a_part() const { return attention.mode != AttentionMode::exact; }
  /// Newest tokens that every such step reads, at least.
  std::uint32_t newest_always_read() const;
  /// A text of no more tokens is read exactly.
  std::uint32_t tokens_read_exactly() const;
  /// In sparse attention, what is noted of one layer: see RecallView.
  std::size_t mass_floats() const {
    const std::size_t blocks = (context + shape.tokens - 1) / shape.tokens;
    return notes_mass(attention) ? shape.kv_heads * blocks * (shape.tokens / 4) : 0;
  }
  /// Groups of choice_tokens in the full blocks of a context, where steps read a part of the
  /// tokens.
  std::size_t choice_groups() const {
    const std::size_t blocks = (context + shape.tokens - 1) / shape.tokens;
    return reads_a_part() ? blocks * (shape.tokens / choice_tokens) : 0;
  }
  bool has_windows() const {
    return std::ranges::any_of(windows, [](std::uint32_t window) { return window != 0; });
  }
  /// Whether a text may have to be read again by a sequence of its own (Rebuild).
  bool may_rebuild() const { return has_windows() || keeps_text_only; }
  /// First block that a row at `position` reads in a layer.
  std::uint32_t first_block(std::uint32_t layer, std::uint32_t position) const {
    const std::uint32_t size = window(layer);
    return size == 0 || position < size ? 0 : (position - size + 1) / shape.tokens;
  }
};

/// One layer of a block.
struct BlockPage {
  Block* block = nullptr;
  std::uint32_t layer = 0;
};

/// What a codec made of a page.
using EncodedPage = std::vector<std::byte>;

/// Has slots of the pool for what is read of pages elsewhere, and can do without.
class SlotBorrower {
 public:
  virtual ~SlotBorrower() = default;
  virtual void give_back() = 0;
  /// A resident page of a block is about to leave its slot.
  virtual void page_leaves(const Block& block, std::uint32_t layer) = 0;
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
  BlockIndex& index() { return index_; }

  /// True when no tier has anything: full contexts of all sequences fit into the pool, or what
  /// leaves it is computed again before the step that reads it.
  bool holds_everything() const { return tiers_.empty(); }
  /// Slots that stay free for pages streaming through and for one replay, when not everything fits.
  std::uint32_t stream_slots() const { return stream_slots_; }
  /// Slots that stay free for the open pages of one rebuild (replay.h) besides.
  std::uint32_t rebuild_slots() const {
    return !tiers_.empty() && options_.has_windows() ? options_.layers : 0;
  }
  std::uint32_t blocks_max() const { return blocks_max_; }
  /// Slots that make_room() can provide: the free ones, those of pages that may leave, and what is
  /// lent.
  std::uint32_t slots_available() const;

  /// Borrowers give back all they have when make_room() finds nothing else.
  void add_borrower(SlotBorrower& borrower) { borrowers_.push_back(&borrower); }
  void remove_borrower(SlotBorrower& borrower) { std::erase(borrowers_, &borrower); }
  void note_lent(std::int32_t slots) { lent_ += slots; }
  std::uint32_t slots_lent() const { return static_cast<std::uint32_t>(lent_); }
  /// Most that one sequence may borrow, so that as many others have as much, besides what all need
  /// to go on: the block under way, whose slots the next one gets, and pages in windows.
  std::uint32_t slots_to_lend(std::uint32_t slots_kept_free) const;

  /// A new limit of memory, from now on. Pages leave the pool where it is lower. Errors:
  /// out_of_budget (below what a step needs, or what is in use cannot leave), io; then the old one
  /// stays.
  Result<void> set_memory_bytes(std::uint64_t bytes);

  /// A new limit of the disk, from now on; 0: only the device's. What nobody uses goes where it is
  /// lower. Errors: out_of_budget (what is in use does not fit), io; then the old one stays.
  Result<void> set_disk_bytes(std::uint64_t bytes);

  /// Lets pages leave the pool until `slots` slots are free: those of blocks that nobody uses
  /// first, then those of the newest blocks. Waits for the writes. Errors: out_of_budget (tier
  /// full), io, with what to do.
  Result<void> make_room(std::uint32_t slots);

  /// The same for pages of blocks that nobody uses only, as far as there are such.
  void make_room_of_unused(std::uint32_t slots);

  /// Bookkeeping for one more sequence. Errors: out_of_budget (options.sequences live already).
  Result<void> admit_sequence();
  void dismiss_sequence() { --live_sequences_; }
  /// Bookkeeping for the sequence of a rebuild, of which there is one at a time.
  void admit_rebuild();
  void dismiss_rebuild() { rebuilding_ = false; }

  // Blocks.
  /// Pages of a pinned block stay in the pool. Counted.
  void pin(Block& block);
  void unpin(Block& block);
  /// An open block behind `parent`, without slots, used by one sequence.
  Block& add_block(Block& parent, std::uint32_t first_position);
  /// A text begins: the unit of time of the policies.
  void begin_text();
  /// One more sequence uses a sealed block, one fewer does.
  void use(Block& block);
  void unuse(Block& block);
  /// A sealed block that nobody uses and whose time has come. It is no match any more.
  bool is_expired(const Block& block) const;
  std::chrono::nanoseconds now() const { return env_.now(); }
  /// What loading and computing cost here.
  FillCosts& costs() { return costs_; }
  /// How many of `blocks`, from the first one on, are better computed again than loaded.
  std::size_t blocks_to_compute(std::span<Block* const> blocks) const;
  /// Starts to load pages of a block into slots to spare, for a sequence that will come to it.
  void load_ahead(Block& block);
  /// A text has come as far as this block: what may follow is loaded ahead, as options.prefetch
  /// says.
  void load_what_may_follow(Block& block);
  /// Between two steps: a bounded part of the work that makes room before it is needed.
  void tidy_up();
  /// The open block that a sequence has written holds `tokens` for ever. If there is a block with
  /// the same text the open one ends, giving what the other lacks, and the other one is returned;
  /// the sequence uses what is returned. `tokens` may be fewer than a block holds: a tail.
  /// A private block stays the only one with its key. `hidden`: [layer][token] the hidden states
  /// that the pages came from, where they are what is kept; empty: they are not known, and pages
  /// are kept themselves.
  Block& seal(Block& open, std::span<const TokenId> tokens, bool is_private = false,
              Bytes hidden = {});
  /// Key sketches of a page, or null where there are none.
  const std::byte* sketch(const Block& block, std::uint32_t layer) const;
  /// Makes them, of a full block's page with these bytes.
  void make_sketch(Block& block, std::uint32_t layer, const std::byte* page);
  /// Whether hidden states are kept instead of pages.
  bool keeps_hidden() const { return options_.codec->hidden_row_bytes() > 0; }
  /// Whether the pages of a full block are others than those that were written.
  bool defines_pages() const { return !options_.codec->is_lossless(); }
  /// The page of a full block becomes what the codec makes of it.
  EncodedPage define_page(const Block& block, std::uint32_t layer, SlotIndex slot);
  /// Ends an open block.
  void drop_open(Block& open);
  /// No sequence will read this page again: frees its slot and its place in the tier.
  void forget_page(Block& block, std::uint32_t layer);
  /// The copy of a streamed page in `slot` stays, if there are slots to spare. False: it is still
  /// the caller's.
  bool keep_streamed(Block& block, std::uint32_t layer, SlotIndex slot);
  /// Tells whoever wants to hear it that tokens of a block leave memory.
  void tell_eviction(const Block& block, std::uint32_t layer, std::uint32_t first_token,
                     std::uint32_t tokens, double mass, const char* reason) const;
  /// Whether a page is in the pool, may leave it, and no second sequence uses it.
  bool may_demote(const Block& block, std::uint32_t layer) const;
  /// Lets those of these pages leave the pool that may_demote(), and waits until tiers have them.
  /// Errors: those of make_room(); then pages that no tier took are still in the pool.
  Result<void> demote(std::span<const BlockPage> pages, const char* reason);
  /// Slots that streams hold of those kept free.
  void note_streaming(std::int32_t slots) { streaming_ += slots; }

  using Done = std::function<void(Result<void>)>;
  /// Starts to read a stored page into `slot`. `done` is called from reap() or wait(). False: the
  /// queue is full, or the tier does not have the page any more (then done was called).
  bool start_load(Block& block, std::uint32_t layer, SlotIndex slot, Done done);
  /// Whether read_group() may find this page.
  bool is_stored_in_groups(const PageEntry& page) const;
  /// Reads one group of a page from disk (codec/group_layout.h), verified. Any thread. Errors:
  /// those of DiskTier::read_groups().
  Result<void> read_group(const Block& block, std::uint32_t layer, std::uint32_t group,
                          MutableBytes out) const;
  /// Writes a page of a sealed block from `slot` and waits until a tier has it.
  Result<void> store(Block& block, std::uint32_t layer, SlotIndex slot);
  // Sessions, and what else outlives the process (options.keep_disk).
  bool keeps_sessions() const { return options_.keep_disk; }
  /// Makes the pages of a sealed block durable with the next sync. Errors: page_lost (one is
  /// nowhere, also when what a process before left does not verify), out_of_budget, io.
  Result<void> persist(Block& block);
  /// The same for what an open block holds so far: a tail.
  Result<Block*> save_tail(Block& open, std::span<const TokenId> tokens);
  /// When this returns, the session and all that was persisted before survive a crash. Takes the
  /// place of a session with the same name. Errors: invalid_argument (its name, or nothing is
  /// kept), out_of_budget, io: then the session before is still there.
  Result<void> put_session(SessionRecord session);
  /// Errors: invalid_argument, not_found, corrupt.
  Result<SessionRecord> read_session(const std::string& name);

  /// Memory ran out in the middle of something, and what is under way may belong to nobody any
  /// more: from now on nothing is done but to end. What is on disk is as after a kill.
  void break_off() { is_broken_off_ = true; }
  bool is_broken_off() const { return is_broken_off_; }

  /// Handles what the tiers have finished.
  void reap();
  /// Waits until a tier finishes something, and handles it. Something must be in flight.
  void wait();

  KvStats stats() const;
  KvStats& counters() { return counters_; }

 private:
  PageStore(Env& env, const PageStoreOptions& options, std::uint64_t limit_bytes, PagePool pool,
            std::vector<std::unique_ptr<Tier>> tiers, const BlockIndexOptions& index);

  // Pages.
  PageIdentity identity(const Block& block, std::uint32_t layer) const;
  static PageId page_id(const Block& block, std::uint32_t layer);
  EvictionPolicy& policy_of(std::uint32_t layer) {
    return options_.window(layer) == 0 ? *policy_ : *windowed_policy_;
  }
  void may_leave(Block& block, std::uint32_t layer);
  void may_leave_no_more(Block& block, std::uint32_t layer);
  void track(Block& block, std::uint32_t layer);
  void untrack(Block& block, std::uint32_t layer);
  void free_slot(PageEntry& page);
  void free_slot(Block& block, PageEntry& page);
  bool anything_in_flight() const;
  /// Submits a page to a tier. False: its queue is full, wait first.
  bool needs_record(const Block& block, std::size_t tier) const;
  bool submit_put(Block& block, std::uint32_t layer, SlotIndex slot, std::size_t tier, Done done);
  bool start_put(Block& block, std::uint32_t layer, std::size_t tier = 0);
  void note_load(std::size_t tier, bool is_start);
  std::uint32_t slots_kept_for_steps() const;
  void load_pages(Block& block);
  bool keep_loaded(Block& block, std::uint32_t layer, SlotIndex slot);
  void finish_put(Block& block, std::uint32_t layer, std::size_t tier, const Result<void>& outcome);
  static Error disk_error(const Error& error);
  bool let_page_leave(Block& block, std::uint32_t layer, const char* reason,
                      bool tells_borrowers = true);
  bool let_unused_page_leave();
  bool let_used_page_leave();
  bool take_back_slots();
  bool free_disk_room();
  /// `attempt`, again and again while it finds the disk full and blocks that nobody uses can go.
  Result<void> making_disk_room(const std::function<Result<void>()>& attempt);
  /// Starts one thing and waits for its outcome. `start` returns false when the queue is full, to
  /// be called again, or after it has called `done` itself.
  Result<void> run(const std::function<bool(Done done)>& start);

  // What outlives the process.
  std::uint8_t disk_bit() const { return static_cast<std::uint8_t>(1U << (tiers_.size() - 1)); }
  Result<void> recover();
  bool recover(const Digest128& key, const BlockRecord& record);
  void erase_from_disk(const Digest128& key);
  std::vector<std::byte> description_of(const Block& block) const;
  bool start_record(Block& block);
  Result<void> record(Block& block);
  Result<void> put_record(RecordKind kind, const Digest128& key,
                          const std::vector<std::byte>& body);
  bool is_whole(const Block& block) const;
  Result<void> wait_for(const std::function<Result<TierTicket>()>& submit);
  Result<void> put_on_disk(Block& block, std::span<const std::optional<SlotIndex>> slots);
  Result<void> copy_to_disk(Block& block, std::uint32_t layer);
  Result<void> store(Block& block, std::uint32_t layer, SlotIndex slot, std::size_t first_tier);
  Result<void> sync();
  void flush();
  void end();
  static Error no_session_place();
  void count_session(const SessionRecord& session, std::int32_t change);
  Result<void> check_described(const SessionRecord& session) const;
  Result<void> persist_used(Block& block);
  Result<void> write_lacking(Block& open, Block& tail);

  // Blocks.
  /// The same for the same text, also when it is read again later.
  static BlockId policy_id(const Block& block) { return std::max<BlockId>(block.key.low, 1); }
  BlockFacts facts_of(const Block& block) const;
  void admit(Block& block);
  void note_in_pool(Block& block);
  void start_writing(Block& block);
  void put_encoded(Block& block, std::uint32_t layer, EncodedPage encoded);
  PagePlan plan_of(const Block& block, std::uint32_t layer) const;
  /// `source`: what options.codec encodes, a page or its hidden states.
  EncodedPage encode_page(const PagePlan& plan, Bytes source) const;
  void note_left_pool(Block& block);
  bool may_be_dropped(const Block& block) const;
  bool drop_one_unused();
  void drop(Block& block);
  void take_over(Block& from, Block& to);
  void drop_tails_within(Block& block);
  void drop_if_within_sibling(Block& tail);
  Digest128 private_key_of(const Block& open, std::span<const TokenId> tokens);
  std::byte* sketch_place(std::uint32_t sketch, std::uint32_t layer) const;
  void drop_sketch(Block& block);
  Result<void> reserve_sketches(std::uint32_t count);

  Env& env_;
  const PageStoreOptions options_;
  std::uint32_t blocks_max_ = 0;
  std::uint32_t stream_slots_ = 0;
  std::uint32_t live_sequences_ = 0;
  bool rebuilding_ = false;
  bool is_broken_off_ = false;
  std::uint32_t slots_least_ = 0;
  std::uint64_t slot_books_bytes_ = 0;
  Budget budget_;
  Reservation pool_reservation_;
  Reservation books_reservation_;
  Reservation io_reservation_;
  PagePool pool_;
  struct TierState {
    std::unique_ptr<Tier> tier;
    std::unordered_map<TierTicket, Done> in_flight = {};
  };
  std::vector<TierState> tiers_;  // fastest first
  DiskTier* disk_ = nullptr;      // the last of them
  BlockIndex index_;
  /// Key sketches of blocks in use: [place][layer][key_sketch_bytes()].
  AlignedBuffer sketches_;
  std::vector<std::uint32_t> free_sketches_;
  std::vector<float> sketch_scratch_;
  /// Resident pages of sealed blocks in use.
  std::unique_ptr<EvictionPolicy> policy_;
  /// Pages of windowed layers soon go for good, so writing one is mostly in vain: they leave last.
  std::unique_ptr<EvictionPolicy> windowed_policy_;
  std::map<PageId, Block*> tracked_;
  /// Which of the sealed blocks that nobody uses leaves the pool next, and which goes for good.
  std::unique_ptr<CachePolicy> pool_policy_;
  std::unique_ptr<CachePolicy> store_policy_;
  std::unique_ptr<PrefetchPolicy> prefetch_policy_;
  std::unordered_map<BlockId, Block*> sealed_;
  std::uint32_t unused_resident_pages_ = 0;
  std::int32_t streaming_ = 0;
  std::int32_t lent_ = 0;
  std::vector<SlotBorrower*> borrowers_;
  FillCosts costs_;
  // Of the loads since none was in flight.
  std::uint32_t loads_in_flight_ = 0;
  std::uint64_t loaded_bytes_ = 0;
  std::chrono::nanoseconds loading_since_ = {};
  std::uint32_t leaving_ = 0;  ///< pages whose slots are free as soon as they are written
  Result<void> write_error_;
  KvStats counters_;
};

/// Breaks a store off when something throws behind it, before what was declared earlier ends and
/// touches the store.
class BreakOffOnThrow {
 public:
  explicit BreakOffOnThrow(PageStore& store) : store_(store) {}
  BreakOffOnThrow(const BreakOffOnThrow&) = delete;
  BreakOffOnThrow& operator=(const BreakOffOnThrow&) = delete;
  ~BreakOffOnThrow() {
    if (std::uncaught_exceptions() > exceptions_) store_.break_off();
  }

 private:
  PageStore& store_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace headrace
