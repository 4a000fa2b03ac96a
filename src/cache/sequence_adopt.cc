// The part of SequenceCache that takes over, copies and saves texts.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/sequence_cache.h"

namespace headrace {

std::uint32_t SequenceCache::take_cached(std::span<const TokenId> tokens) {
  if (position() % shape().tokens != 0 || table_.blocks() * shape().tokens != position()) return 0;
  const std::uint32_t before = position();
  if (before == 0) store_.begin_text();
  std::vector<Block*> blocks;
  for (const Block* parent = &last_block();;) {
    const std::size_t first = blocks.size() * shape().tokens;
    if (tokens.size() - first < shape().tokens) break;
    Block* const block = store_.index().find(*parent, tokens.subspan(first, shape().tokens));
    if (block == nullptr || store_.is_expired(*block)) break;
    blocks.push_back(block);
    parent = block;
  }
  while (!blocks.empty() && !can_continue_behind(blocks)) blocks.pop_back();
  const auto first_missing = std::ranges::find_if(blocks, [](const Block* block) {
    return std::ranges::any_of(block->pages, [](const PageEntry& page) { return !page.slot; });
  });
  const std::span<Block* const> missing(first_missing, blocks.end());
  const std::size_t computed = store_.blocks_to_compute(missing);
  if (computed > 0) {
    // The sequence reads these, and meanwhile those behind them are loaded; when it comes there
    // this is asked again.
    for (std::size_t i = missing.size(); i-- > computed;) store_.load_ahead(*missing[i]);
    blocks.erase(first_missing, blocks.end());
    take_blocks(blocks);
    return note_reused(before);
  }
  take_blocks(blocks);
  const std::span<const TokenId> rest = tokens.subspan(position() - before);
  if (!rest.empty()) copy_start_of_block(rest);
  if (position() > before && table_.block(table_.blocks() - 1).sealed) {
    store_.load_what_may_follow(table_.block(table_.blocks() - 1));
  }
  return note_reused(before);
}

std::uint32_t SequenceCache::note_reused(std::uint32_t position_before) {
  const std::uint32_t tokens = position() - position_before;
  tokens_reused_ += tokens;
  store_.counters().tokens_reused += tokens;
  return tokens;
}

/// Whether all pages exist that a row behind these blocks reads.
bool SequenceCache::can_continue_behind(std::span<Block* const> blocks) const {
  const std::uint32_t end = position() + static_cast<std::uint32_t>(blocks.size()) * shape().tokens;
  for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
    const std::uint32_t first = store_.options().first_block(layer, end);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (table_.blocks() + i >= first && !blocks[i]->pages[layer].exists()) return false;
    }
  }
  return true;
}

void SequenceCache::take_blocks(std::span<Block* const> blocks) {
  for (Block* block : blocks) {
    table_.add_block(*block);
    tokens_.insert(tokens_.end(), block->tokens.begin(), block->tokens.end());
    ++block->parent->continued;
    store_.use(*block);
    count_reader(*block);
  }
  if (blocks.empty()) return;
  let_go_behind_windows();
  // What is in use is worth more than what is not: its pages may stay when they are loaded.
  std::uint32_t missing = 0;
  for (const Block* block : blocks) {
    for (const PageEntry& page : block->pages) missing += page.slot ? 0 : 1;
  }
  store_.make_room_of_unused(missing + slots_kept_free());
}

/// Copies the block that begins with most of `tokens` into an open one and cuts it there.
void SequenceCache::copy_start_of_block(std::span<const TokenId> tokens) {
  for (bool is_copied = false; !is_copied;) {
    const BlockIndex::Match match = store_.index().longest_match(last_block(), tokens);
    if (match.block == nullptr || store_.is_expired(*match.block)) return;
    // A full block of a lossy codec has other values than its rows had while it was open.
    if (store_.defines_pages() && match.block->tokens.size() == shape().tokens) return;
    store_.use(*match.block);  // so that making room does not end it
    const bool has_room = reserve_blocks(table_.blocks() + 1).ok();
    is_copied = has_room && fill_copy(*match.block, last_block());
    if (is_copied) {
      const auto taken = tokens.first(match.tokens);
      tokens_.insert(tokens_.end(), taken.begin(), taken.end());
      hidden_from_ = position();
    } else {
      drop_empty_blocks();
    }
    store_.unuse(*match.block);
    if (!has_room) return;
    // What could not be loaded is gone, so the next best block is tried.
  }
}

bool SequenceCache::fill_copy(Block& from, Block& to) {
  std::uint32_t asked = 0;
  std::uint32_t answered = 0;
  bool all_loaded = true;
  const auto done = [&](const Result<void>& outcome) {
    all_loaded = all_loaded && outcome.ok();
    ++answered;
  };
  for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
    const SlotIndex slot = *to.pages[layer].slot;
    if (from.pages[layer].slot) {
      std::memcpy(store_.pool().data(slot), store_.pool().data(*from.pages[layer].slot),
                  shape().bytes());
      continue;
    }
    ++asked;
    for (bool started = false; !started;) {
      const std::uint32_t before = answered;
      started = store_.start_load(from, layer, slot, done) || answered != before;
      if (!started) store_.wait();  // the queue is full
    }
  }
  while (answered < asked) store_.wait();
  return all_loaded;
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::fork() {
  HEADRACE_TRY(store_.admit_sequence());
  std::unique_ptr<SequenceCache> copy(new SequenceCache(store_, options_, false));
  const BreakOffOnThrow guard(store_);
  std::vector<Block*> sealed;
  for (std::uint32_t i = 0; i < table_.blocks() && table_.block(i).sealed; ++i) {
    sealed.push_back(&table_.block(i));
  }
  copy->take_blocks(sealed);
  copy->recalled_from_ = recalled_from_;
  copy->mass_ = mass_;
  copy->mass_until_ = mass_until_;
  copy->zones_ = zones_;
  if (sealed.size() == table_.blocks()) return copy;
  HEADRACE_TRY(copy->reserve_blocks(table_.blocks()));
  for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
    std::memcpy(store_.pool().data(*copy->last_block().pages[layer].slot),
                store_.pool().data(*last_block().pages[layer].slot), shape().bytes());
  }
  copy->hidden_ = hidden_;
  copy->hidden_from_ = hidden_from_;
  const auto rest = tokens().subspan(copy->position());
  copy->tokens_.insert(copy->tokens_.end(), rest.begin(), rest.end());
  return copy;
}

std::optional<PagePlace> SequenceCache::lost_for_save() const {
  for (std::uint32_t block = 0; block < table_.blocks(); ++block) {
    for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
      const bool is_needed = store_.options().window(layer) == 0 && table_.block(block).sealed;
      if (is_needed && !table_.page(layer, block).exists()) return PagePlace{layer, block};
    }
  }
  return std::nullopt;
}

Result<void> SequenceCache::save(SessionRecord session) {
  if (!store_.keeps_sessions()) return store_.put_session(std::move(session));  // says what to do
  session.tokens = tokens_;
  session.model = store_.options().model;
  session.layers = table_.layers();
  session.shape = shape();
  for (std::uint32_t i = 0; i < table_.blocks(); ++i) {
    Block* block = &table_.block(i);
    // What recall has computed is read again, exactly.
    if (is_private_before(std::min(position(), table_.first_position(i + 1)))) break;
    if (block->sealed) {
      HEADRACE_TRY(store_.persist(*block));
    } else {
      HEADRACE_TRY_ASSIGN(block, store_.save_tail(*block, tokens().subspan(block->first_position)));
    }
    session.blocks.push_back(block->key);
  }
  return store_.put_session(std::move(session));
}

}  // namespace headrace
