// SequenceCache: the keys and values of one sequence. One step goes
//   begin(rows) -> the forward pass uses it as SequenceKv -> commit(tokens), or abort() if the pass
//   failed.
// A step that failed with page_lost is repeated after replay: see replay.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/fill_queue.h"
#include "cache/group_cache.h"
#include "cache/page_store.h"
#include "page/page_stream.h"

namespace headrace {

/// A page of a sequence.
struct PagePlace {
  std::uint32_t layer = 0;
  std::uint32_t block = 0;
};

/// Streams the pages of one layer in order: resident ones at once, the others as they arrive.
class BlockStream final : public PageStream {
 public:
  /// Pages that rows from `position` on read, up to `end`, the first position that is not read.
  /// `fills` may be null when every page has a slot.
  /// `wanted`: [block] which ones to yield, not 0; empty: all. `parts`: [block] which ones to yield
  /// without data.
  void start(PageStore& store, PageTable& table, FillQueue* fills, std::uint32_t layer,
             std::uint32_t position, std::uint32_t end, std::span<const std::uint8_t> wanted = {},
             std::span<const std::uint8_t> parts = {});
  /// One more page at the end, which no table knows: the one under replay.
  void set_last_page(const PageView& page) { last_page_ = page; }

  Result<std::span<const PageView>> next() override;
  /// Gives the streamed slots back that were yielded last.
  void finish();

  /// The page that could not be restored, after next() failed with page_lost.
  std::optional<PagePlace> lost() const { return lost_; }
  void forget_lost() { lost_.reset(); }

 private:
  PageStore* store_ = nullptr;
  PageTable* table_ = nullptr;
  FillQueue* fills_ = nullptr;
  std::uint32_t layer_ = 0;
  std::uint32_t end_ = 0;
  std::uint32_t block_ = 0;
  std::span<const std::uint8_t> wanted_;
  std::span<const std::uint8_t> parts_;
  std::optional<PageView> last_page_;
  std::optional<PagePlace> lost_;
  std::vector<PageView> batch_;
  std::vector<SlotIndex> streamed_;
};

class SequenceCache final : public SequenceKv {
 public:
  /// Texts share blocks with those of the same tenant only. Errors: out_of_budget (as many live as
  /// the store was opened for).
  static Result<std::unique_ptr<SequenceCache>> create(PageStore& store,
                                                       const SequenceOptions& options = {});
  /// The sequence of a rebuild (replay.h): may use the slots and the bookkeeping kept for it.
  static std::unique_ptr<SequenceCache> create_for_rebuild(PageStore& store,
                                                           const SequenceOptions& options);
  ~SequenceCache() override;
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  std::span<const TokenId> tokens() const { return tokens_; }
  /// How many of them take_cached() brought.
  std::uint64_t tokens_reused() const { return tokens_reused_; }
  /// Most rows, up to `wanted`, that the next step can take with the slots that other sequences
  /// leave. At least 1.
  std::uint32_t rows_possible(std::uint32_t wanted) const;

  /// Takes over blocks that hold the first of `tokens` already, as many as there are, and copies
  /// what another block has of the rest. Returns how many of `tokens` have joined the sequence. At
  /// the border of a block only; else 0.
  std::uint32_t take_cached(std::span<const TokenId> tokens);

  /// Another sequence with the same text: shares the sealed blocks and has a copy of the open one.
  /// Errors: out_of_budget.
  Result<std::unique_ptr<SequenceCache>> fork();
  /// Saves the text as a session: `session` says all but tokens and blocks. Errors: those of
  /// PageStore::put_session(), and page_lost: lost_for_save() must be replayed, then again.
  Result<void> save(SessionRecord session);
  /// The first page that every later reader of this text needs, and that is nowhere.
  std::optional<PagePlace> lost_for_save() const;

  /// reserve() and start() of a step that this sequence takes alone.
  Result<void> begin(std::uint32_t rows);
  /// Makes place for `rows` more tokens. Errors: those of make_room(), and page_lost where only the
  /// text is kept of pages that leave: missing_blocks() must be computed first.
  Result<void> reserve(std::uint32_t rows);
  /// Steps that read a part of the tokens read these, which lie in the context, from now on.
  void keep(std::uint32_t first_token, std::uint32_t tokens);
  /// Takes what matters least out of memory, between two steps. Returns how many bytes are free
  /// then that were not. Errors: those of PageStore::demote().
  Result<std::uint64_t> purge(const PurgeOptions& options);
  /// The next step draws a token: where --attention says so it reads a part of the tokens only.
  void set_decoding(bool decoding) { decoding_ = decoding; }
  /// Starts to load what the step will read, through at most `slots` slots. When sequences share a
  /// step, all reserve() before one starts: making room may take pages of any of them.
  void start(std::uint32_t slots);
  /// The rows of begin() are these tokens, or the first of them are and the others are dropped:
  /// seals the blocks that are full now.
  void commit(std::span<const TokenId> tokens);
  /// Ends a step whose forward pass failed, and gives the slots back that it had added; begin() can
  /// be called again.
  void abort();
  /// The page that made the last step fail with page_lost.
  std::optional<PagePlace> lost() const { return stream_.lost(); }

  /// Pages of sealed blocks that are nowhere, and the first and the last of these blocks.
  struct Missing {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::uint32_t pages = 0;
  };
  std::optional<Missing> missing_blocks() const;
  /// Joins the first blocks of another sequence, whose pages exist, to an empty one.
  void take_first_blocks(SequenceCache& other, std::uint32_t count);

  /// Whether all that a replay of this page reads is still kept: layers with a window let go of
  /// what is behind it.
  bool can_replay(const PagePlace& lost) const;

  // SequenceKv
  const PageShape& shape() const override { return store_.options().shape; }
  std::span<const RowSlice> rows(std::uint32_t layer) override;
  std::byte* hidden_rows(std::uint32_t layer) override;
  PageStream& attend(std::uint32_t layer) override;
  Result<std::optional<RecallView>> recall(std::uint32_t layer) override;
  std::size_t choose(std::uint32_t layer, const TokenChoice& choice) override;
  void load_group(std::size_t index) override { groups_->load(index); }
  PageStream& attend_chosen(std::uint32_t layer) override;
  bool defers_groups() const override { return groups_ != nullptr && groups_->defers(); }
  bool is_deferred(const PageView& view, std::uint32_t group) const override {
    return !groups_->has(table_.block_of(view.first_position), group);
  }
  void copy_groups(const PageView& view, std::uint32_t kv_head,
                   std::span<const std::uint16_t> groups, std::byte* page) const override {
    groups_->copy(table_.block_of(view.first_position), kv_head, groups, page);
  }

  PageTable& table() { return table_; }
  const SequenceOptions& options() const { return options_; }
  PageStore& store() { return store_; }

 private:
  SequenceCache(PageStore& store, const SequenceOptions& options, bool is_rebuild);

  std::uint32_t position() const { return static_cast<std::uint32_t>(tokens_.size()); }
  void leave();
  void end_step();
  void drop_empty_blocks();
  void seal(std::uint32_t block);
  Bytes hidden_of(std::uint32_t block) const;
  void keep_tail();
  void let_go_behind_windows();
  void count_reader(Block& block);
  Block& last_block();
  void take_blocks(std::span<Block* const> blocks);
  std::uint32_t note_reused(std::uint32_t position_before);
  bool can_continue_behind(std::span<Block* const> blocks) const;
  void copy_start_of_block(std::span<const TokenId> tokens);
  Result<void> reserve_blocks(std::uint32_t blocks);
  bool reads_a_part() const;
  void pin_blocks();
  void unpin_blocks();
  std::uint32_t resident_pages() const;
  bool recalls() const { return reads_a_part() && store_.options().recalls(); }
  bool is_private_before(std::uint32_t end) const {
    return recalled_from_ && *recalled_from_ < end;
  }
  Result<void> find_sketches(std::uint32_t layer);
  PageStream& read_blocks(std::uint32_t layer, std::span<const std::uint8_t> filled,
                          std::span<const std::uint8_t> blocks,
                          std::span<const std::uint8_t> parts = {});
  bool keeps_groups() const;
  struct PurgeList;
  void list_pages(std::uint32_t layer, PurgeList& list);
  void list_groups(PurgeList& list) const;
  bool stays(std::uint32_t first_token, std::uint32_t tokens) const;
  double page_mass(std::uint32_t layer, std::uint32_t block) const;
  Result<void> prepare_groups();
  void weigh_tokens();
  bool fill_copy(Block& from, Block& to);
  std::uint64_t bytes_needed() const;
  /// Through which pages stream. Recall keeps what it reads in memory, and streams little.
  std::uint32_t stream_slots() const;
  std::uint32_t slots_kept_free() const {
    return stream_slots() + (is_rebuild_ ? 0 : store_.rebuild_slots());
  }

  PageStore& store_;
  const SequenceOptions options_;
  Block& root_;
  const bool is_rebuild_;
  const bool has_windows_;
  PageTable table_;
  std::vector<TokenId> tokens_;
  std::uint64_t tokens_reused_ = 0;
  std::vector<std::uint32_t> kept_from_;  // [layer]: the first block that is kept
  /// [layer][token of the open block]: hidden states, where they are kept; known from
  /// hidden_from_ on.
  std::vector<std::byte> hidden_;
  std::uint32_t hidden_from_ = 0;
  std::uint32_t step_rows_ = 0;
  bool decoding_ = false;
  std::optional<std::uint32_t> recalled_from_;  // the first token whose step read a part
  // In sparse attention [layer][PageStoreOptions::mass_floats()]: see RecallView.
  std::vector<float> mass_, next_mass_;
  std::uint32_t mass_until_ = 0;     // the steps of mass_ end here
  std::vector<std::uint8_t> zones_;  // of keep(): see RecallView; empty before the first one
  // [block] of the layer under way.
  std::vector<const std::byte*> sketches_;
  std::vector<std::uint8_t> unsketched_;
  TokenChoice choice_;
  std::vector<std::uint8_t> parts_;  // [block]: its groups are in groups_
  std::vector<std::uint8_t> whole_;  // [block]: chosen from, and needed as a page
  // Of what makes PageStoreOptions::new_token_weight, from the first step of recall on.
  std::function<float(TokenId)> weigh_;
  std::vector<float> weights_;          // [group of choice_tokens]: the largest
  std::uint32_t weighed_ = 0;           // tokens
  std::unique_ptr<GroupCache> groups_;  // while steps of recall follow each other
  std::vector<Block*> pinned_;  // those that the step needs, where only text is kept of others
  std::unique_ptr<FillQueue> fills_;
  BlockStream stream_;
  std::vector<RowSlice> slices_;
};

}  // namespace headrace
