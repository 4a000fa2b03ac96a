#include "cache/sequence_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/no_memory.h"
#include "codec/group_layout.h"
#include "page/shape.h"

namespace headrace {

using std::chrono::seconds;

Result<std::unique_ptr<SequenceCache>> SequenceCache::create(PageStore& store,
                                                             const SequenceOptions& options) {
  HEADRACE_TRY(store.admit_sequence());
  return std::unique_ptr<SequenceCache>(new SequenceCache(store, options, false));
}

std::unique_ptr<SequenceCache> SequenceCache::create_for_rebuild(PageStore& store,
                                                                 const SequenceOptions& options) {
  store.admit_rebuild();
  return std::unique_ptr<SequenceCache>(new SequenceCache(store, options, true));
}

SequenceCache::SequenceCache(PageStore& store, const SequenceOptions& options, bool is_rebuild)
    : store_(store),
      options_(options),
      root_(store.index().root(options.tenant)),
      is_rebuild_(is_rebuild),
      has_windows_(store.options().has_windows()),
      table_(store.options().layers, store.options().shape.tokens, store.blocks_max()),
      kept_from_(store.options().layers),
      hidden_(store.holds_everything() ? 0 : store.options().hidden_block_bytes()) {
  tokens_.reserve(store.options().context);
  if (!is_rebuild) {
    mass_.resize(store.options().layers * store.options().mass_floats());
    next_mass_.resize(mass_.size());
  }
}

SequenceCache::~SequenceCache() {
  if (!store_.is_broken_off() && !has_memory_for([this] { leave(); })) store_.break_off();
  if (is_rebuild_) {
    store_.dismiss_rebuild();
  } else {
    store_.dismiss_sequence();
  }
}

/// What this sequence has stays for others.
void SequenceCache::leave() {
  abort();
  keep_tail();
  // The last ones first: a parent outlives its children.
  for (std::uint32_t i = table_.blocks(); i-- > 0;) {
    Block& block = table_.block(i);
    for (std::uint32_t layer = 0; has_windows_ && layer < table_.layers(); ++layer) {
      if (i < kept_from_[layer] || --block.pages[layer].readers > 0) continue;
      // Others have passed it, and nobody may come to it any more.
      if (is_rebuild_ || !store_.options().reuse) store_.forget_page(block, layer);
    }
    // A block serves as long as the most patient of its users wants.
    block.expires = std::max(block.expires, options_.keep_seconds == 0
                                                ? Block::never
                                                : store_.now() + seconds(options_.keep_seconds));
    store_.unuse(block);
  }
}

std::uint32_t SequenceCache::rows_possible(std::uint32_t wanted) const {
  const std::uint32_t block_tokens = shape().tokens;
  const std::uint32_t open_rows = table_.blocks() * block_tokens - position();
  std::uint32_t available = store_.slots_available();
  // What is in use by this sequence stays.
  if (store_.options().keeps_text_only) available -= std::min(available, resident_pages());
  const std::uint32_t room = available - std::min(available, slots_kept_free());
  std::uint32_t new_blocks = room / table_.layers();
  if (open_rows == 0) new_blocks = std::max(new_blocks, 1U);  // begin() says why it cannot be
  const std::uint64_t room_rows = open_rows + std::uint64_t{new_blocks} * block_tokens;
  // Every row sees the full blocks before its own as the codec defines them, and hidden states of
  // one block have a place.
  if (store_.defines_pages() || store_.keeps_hidden())
    wanted = std::min(wanted, block_tokens - position() % block_tokens);
  const std::uint32_t exact = store_.options().exact_tokens_most;
  wanted = std::min(wanted, position() < exact ? exact - position() : 1);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, room_rows));
}

Result<void> SequenceCache::begin(std::uint32_t rows) {
  HEADRACE_TRY(reserve(rows));
  start(store_.stream_slots());
  return {};
}

Result<void> SequenceCache::reserve(std::uint32_t rows) {
  HEADRACE_CHECK(rows > 0 && position() + rows <= store_.options().context,
                 "a step outside the context");
  step_rows_ = rows;
  // Steps that read everything have no use for groups, and need the slots.
  if (!keeps_groups()) groups_.reset();
  stream_.forget_lost();  // of a step before; in a shared one this stream may never start
  if (store_.options().keeps_text_only) {
    if (missing_blocks()) {
      step_rows_ = 0;
      return Error{ErrorCode::page_lost, "of this text nothing else is kept"};
    }
    pin_blocks();
  }
  Result<void> outcome = reserve_blocks(table_.block_of(position() + rows - 1) + 1);
  if (outcome.ok() && keeps_groups()) outcome = prepare_groups();
  if (!outcome.ok()) step_rows_ = 0;
  return outcome;
}

bool SequenceCache::keeps_groups() const {
  return recalls() && !store_.holds_everything() && GroupCache::is_possible(store_.options());
}

Result<void> SequenceCache::prepare_groups() {
  weigh_tokens();
  if (groups_ == nullptr) groups_ = std::make_unique<GroupCache>(store_, table_, zones_, weights_);
  return groups_->grow(slots_kept_free());
}

/// Those that came since the last step of recall.
void SequenceCache::weigh_tokens() {
  if (!store_.options().new_token_weight) return;
  if (!weigh_) {
    weigh_ = store_.options().new_token_weight();
    weights_.resize(store_.options().choice_groups());
  }
  for (; weighed_ < position(); ++weighed_) {
    float& weight = weights_[weighed_ / choice_tokens];
    weight = std::max(weight, weigh_(tokens_[weighed_]));
  }
}

std::uint32_t SequenceCache::stream_slots() const {
  constexpr std::uint32_t recall_stream_slots = 8;
  return recalls() ? std::min(store_.stream_slots(), recall_stream_slots) : store_.stream_slots();
}

/// Open blocks up to `blocks_needed`, with slots.
Result<void> SequenceCache::reserve_blocks(std::uint32_t blocks_needed) {
  const std::uint32_t new_blocks =
      blocks_needed > table_.blocks() ? blocks_needed - table_.blocks() : 0;
  HEADRACE_TRY(store_.make_room(new_blocks * table_.layers() + slots_kept_free()));
  for (std::uint32_t block = table_.blocks(); block < blocks_needed; ++block) {
    table_.add_block(store_.add_block(last_block(), table_.first_position(block)));
    count_reader(table_.block(block));
    for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
      const std::optional<SlotIndex> slot = store_.pool().acquire();
      HEADRACE_CHECK(slot.has_value(), "make_room() made too little room");
      table_.page(layer, block).slot = slot;
      // What lies behind the newest token must be finite for the fold (kernel/fold-inl.h).
      std::memset(store_.pool().data(*slot), 0, shape().bytes());
    }
  }
  return {};
}

void SequenceCache::start(std::uint32_t slots) {
  if (store_.holds_everything()) return;
  slots = std::min(slots, stream_slots());
  // Where a part is read a layer says itself what it needs.
  const std::uint32_t layers = reads_a_part() ? 0 : table_.layers();
  fills_ = std::make_unique<FillQueue>(store_, table_, layers, position(), table_.blocks(), slots);
}

std::span<const RowSlice> SequenceCache::rows(std::uint32_t layer) {
  slices_.clear();
  for (std::uint32_t row = 0; row < step_rows_;) {
    const std::uint32_t block = table_.block_of(position() + row);
    RowSlice slice;
    slice.page = store_.pool().data(*table_.page(layer, block).slot);
    slice.first_row = row;
    slice.first_token = position() + row - table_.first_position(block);
    slice.rows = std::min(step_rows_ - row, shape().tokens - slice.first_token);
    slices_.push_back(slice);
    row += slice.rows;
  }
  return slices_;
}

std::byte* SequenceCache::hidden_rows(std::uint32_t layer) {
  if (hidden_.empty()) return nullptr;
  const std::uint32_t first = position() % shape().tokens;
  HEADRACE_CHECK(first + step_rows_ <= shape().tokens, "hidden states of one block have a place");
  return hidden_.data() +
         (std::size_t{layer} * shape().tokens + first) * store_.options().codec->hidden_row_bytes();
}

/// All of an open block, or nothing where some came from elsewhere.
Bytes SequenceCache::hidden_of(std::uint32_t block) const {
  return hidden_from_ <= table_.first_position(block) ? Bytes(hidden_) : Bytes();
}

void SequenceCache::keep(std::uint32_t first_token, std::uint32_t tokens) {
  if (!store_.options().reads_a_part()) return;
  zones_.resize(store_.options().choice_groups());
  const std::uint32_t end = (first_token + tokens - 1) / choice_tokens + 1;
  for (std::uint32_t group = first_token / choice_tokens; group < end; ++group) zones_[group] = 1;
}

/// Whether the step reads a part of the tokens.
bool SequenceCache::reads_a_part() const {
  const bool may_be_exact = !decoding_ && position() < store_.options().exact_tokens_most;
  return !may_be_exact && store_.options().reads_a_part() && step_rows_ == 1 &&
         position() + 1 > store_.options().tokens_read_exactly();
}

Result<std::optional<RecallView>> SequenceCache::recall(std::uint32_t layer) {
  if (!reads_a_part() || store_.options().window(layer) != 0) return std::optional<RecallView>();
  if (recalls()) {
    HEADRACE_TRY(find_sketches(layer));
  } else {
    sketches_.assign(table_.blocks(), nullptr);
  }
  const std::uint32_t last = table_.blocks() - 1;
  const std::uint32_t first = table_.first_position(last);
  const PageView newest = {first, position() + 1 - first,
                           store_.pool().data(*table_.page(layer, last).slot)};
  const std::size_t floats = store_.options().mass_floats();
  return std::optional<RecallView>(
      {&store_.options().attention, sketches_, newest, groups_ != nullptr,
       std::span(mass_).subspan(layer * floats, floats),
       std::span(next_mass_).subspan(layer * floats, floats), mass_until_ == position(), zones_});
}

/// Those of all full blocks. Blocks that come from another text, or from disk, have none yet. What
/// a step reads must not depend on where a block came from, so theirs are made before the choice.
Result<void> SequenceCache::find_sketches(std::uint32_t layer) {
  sketches_.clear();
  unsketched_.clear();
  bool are_complete = true;
  for (std::uint32_t i = 0; i < table_.blocks(); ++i) {
    const Block& block = table_.block(i);
    sketches_.push_back(store_.sketch(block, layer));
    const bool is_full = block.sealed && block.tokens.size() == shape().tokens;
    const bool lacks_one = is_full && sketches_.back() == nullptr;
    unsketched_.push_back(lacks_one ? 1 : 0);
    are_complete = are_complete && !lacks_one;
  }
  if (are_complete) return {};
  PageStream& pages = read_blocks(layer, unsketched_, unsketched_);
  while (true) {
    HEADRACE_TRY_ASSIGN(const std::span<const PageView> batch, pages.next());
    if (batch.empty()) return {};
    for (const PageView& page : batch) {
      const std::uint32_t i = page.first_position / shape().tokens;
      store_.make_sketch(table_.block(i), layer, page.data);
      sketches_[i] = store_.sketch(table_.block(i), layer);
    }
  }
}

std::size_t SequenceCache::choose(std::uint32_t layer, const TokenChoice& choice) {
  choice_ = choice;
  parts_.assign(choice.blocks.size(), 0);
  if (groups_ == nullptr) return 0;
  for (std::uint32_t i = 0; i < parts_.size(); ++i) {
    if (choice.blocks[i] == 0) continue;
    if (sketches_[i] == nullptr) {  // read whole: the block under way
      const std::uint32_t tokens = position() + 1 - table_.first_position(i);
      store_.counters().recall_groups_read += group_count(std::min(shape().tokens, tokens));
      continue;
    }
    const PageEntry& page = table_.page(layer, i);
    parts_[i] = !page.slot && store_.is_stored_in_groups(page);
  }
  return groups_->choose(layer, choice, parts_);
}

PageStream& SequenceCache::attend_chosen(std::uint32_t layer) {
  if (groups_ != nullptr) groups_->end_loads(parts_);
  whole_.assign(choice_.blocks.begin(), choice_.blocks.end());
  for (std::size_t i = 0; i < whole_.size(); ++i)
    if (parts_[i] != 0) whole_[i] = 0;
  return read_blocks(layer, whole_, choice_.blocks, parts_);
}

/// Those of `blocks`; pages of `filled` are loaded where they have no slot, those of `parts` are
/// yielded without data.
PageStream& SequenceCache::read_blocks(std::uint32_t layer, std::span<const std::uint8_t> filled,
                                       std::span<const std::uint8_t> blocks,
                                       std::span<const std::uint8_t> parts) {
  if (fills_ != nullptr) fills_->fill_layer(layer, filled);
  stream_.start(store_, table_, fills_.get(), layer, position(), position() + step_rows_, blocks,
                parts);
  return stream_;
}

PageStream& SequenceCache::attend(std::uint32_t layer) {
  if (reads_a_part() && fills_ != nullptr) fills_->fill_layer(layer, {});
  stream_.start(store_, table_, fills_.get(), layer, position(), position() + step_rows_);
  return stream_;
}

void SequenceCache::commit(std::span<const TokenId> tokens) {
  HEADRACE_CHECK(!tokens.empty() && tokens.size() <= step_rows_,
                 "commit() of other rows than begin()");
  if (reads_a_part()) {
    if (!recalled_from_) recalled_from_ = position();
    mass_.swap(next_mass_);
    mass_until_ = position() + 1;
  }
  end_step();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  drop_empty_blocks();
  for (std::uint32_t block = 0; block < table_.blocks(); ++block) {
    if (!table_.block(block).sealed && table_.first_position(block + 1) <= position()) seal(block);
  }
  let_go_behind_windows();
  KvStats& counters = store_.counters();
  counters.kv_bytes_needed = std::max(counters.kv_bytes_needed, bytes_needed());
}

std::uint64_t SequenceCache::bytes_needed() const {
  std::uint64_t tokens = 0;
  for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
    const std::uint32_t window = store_.options().window(layer);
    tokens += window == 0 ? position() : std::min(position(), window);
  }
  return tokens * (shape().bytes() / shape().tokens);
}

void SequenceCache::let_go_behind_windows() {
  for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
    const std::uint32_t first = store_.options().first_block(layer, position());
    for (; kept_from_[layer] < first; ++kept_from_[layer]) {
      Block& block = table_.block(kept_from_[layer]);
      if (--block.pages[layer].readers == 0) store_.forget_page(block, layer);
    }
  }
}

bool SequenceCache::can_replay(const PagePlace& lost) const {
  if (table_.first_position(lost.block + 1) > store_.options().exact_tokens_most) return false;
  for (std::uint32_t layer = 0; layer <= lost.layer; ++layer) {
    const std::uint32_t first =
        store_.options().first_block(layer, table_.first_position(lost.block));
    if (first < std::min(kept_from_[layer], lost.block)) return false;
  }
  return true;
}

void SequenceCache::abort() {
  end_step();
  groups_.reset();  // a replay may need the slots
  drop_empty_blocks();
}

void SequenceCache::drop_empty_blocks() {
  // Others may need the slots of blocks that a step had added for rows that are not kept.
  while (table_.blocks() > 0 && table_.first_position(table_.blocks() - 1) >= position()) {
    store_.drop_open(table_.drop_last_block());
  }
}

void SequenceCache::end_step() {
  unpin_blocks();
  stream_.finish();
  fills_.reset();
  step_rows_ = 0;
}

void SequenceCache::seal(std::uint32_t block) {
  const auto tokens = std::span(tokens_).subspan(table_.first_position(block), shape().tokens);
  Block& open = table_.block(block);
  open.priority = options_.priority;
  Block& sealed = store_.seal(open, tokens, is_private_before(table_.first_position(block + 1)),
                              hidden_of(block));
  if (&sealed == &open) return;
  table_.replace_block(block, sealed);
  count_reader(sealed);
  // A step may have added more than one block.
  if (block + 1 < table_.blocks()) table_.block(block + 1).parent = &sealed;
}

/// What the open block holds stays, for texts that begin alike.
void SequenceCache::keep_tail() {
  const std::uint32_t blocks = table_.blocks();
  if (blocks == 0 || table_.block(blocks - 1).sealed) return;
  Block& open = table_.block(blocks - 1);
  const auto tokens = std::span(tokens_).subspan(open.first_position);
  if (is_rebuild_ || !store_.options().reuse || is_private_before(position())) {
    table_.drop_last_block();
    store_.drop_open(open);
    return;
  }
  for (const PageEntry& page : open.pages) {
    clear_tokens(shape(), static_cast<std::uint32_t>(tokens.size()),
                 store_.pool().bytes(*page.slot));
  }
  Block& tail = store_.seal(open, tokens);
  if (&tail == &open) return;
  table_.replace_block(blocks - 1, tail);
  count_reader(tail);
}

void SequenceCache::count_reader(Block& block) {
  for (std::uint32_t layer = 0; has_windows_ && layer < table_.layers(); ++layer) {
    if (table_.block_of(block.first_position) >= kept_from_[layer]) ++block.pages[layer].readers;
  }
}

Block& SequenceCache::last_block() {
  return table_.blocks() == 0 ? root_ : table_.block(table_.blocks() - 1);
}

}  // namespace headrace
