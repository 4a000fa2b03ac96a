// The part of PageStore that knows blocks: who uses them, what equals what, and which go.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/page_store.h"
#include "codec/key_sketch.h"

namespace headrace {

namespace {

/// Whether `longer` begins with the tokens of `tail`, which is of no more use then.
bool is_within(const Block& tail, const Block& longer) {
  return tail.tokens.size() < longer.tokens.size() &&
         std::ranges::equal(tail.tokens, std::span(longer.tokens).first(tail.tokens.size()));
}

}  // namespace

Block& PageStore::add_block(Block& parent, std::uint32_t first_position) {
  while (index_.full()) {
    HEADRACE_CHECK(drop_one_unused(), "the blocks in use are more than were reserved");
  }
  Block& block = index_.add(parent, first_position);
  block.users = 1;
  return block;
}

void PageStore::use(Block& block) {
  if (std::exchange(block.loaded_ahead, false)) prefetch_policy_->report(true);
  if (block.users++ > 0) return;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const PageEntry& page = block.pages[layer];
    if (!page.slot || page.leaving) continue;
    --unused_resident_pages_;
    track(block, layer);
  }
  pool_policy_->touch(policy_id(block));
  store_policy_->touch(policy_id(block));
}

void PageStore::unuse(Block& block) {
  if (--block.users > 0) return;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const PageEntry& page = block.pages[layer];
    if (!page.slot || page.leaving) continue;
    untrack(block, layer);
    ++unused_resident_pages_;
  }
  drop_sketch(block);
  if ((!options_.reuse || block.is_private) && may_be_dropped(block)) drop(block);
}

/// No text has this key.
Digest128 PageStore::private_key_of(const Block& open, std::span<const TokenId> tokens) {
  std::vector<TokenId> salted(tokens.begin(), tokens.end());
  const std::uint64_t salt = env_.random();
  salted.push_back(static_cast<TokenId>(salt));
  salted.push_back(static_cast<TokenId>(salt >> 32));
  return index_.key_of(*open.parent, salted);
}

Block& PageStore::seal(Block& open, std::span<const TokenId> tokens, bool is_private,
                       Bytes hidden) {
  open.is_private = is_private;
  const Digest128 key =
      is_private ? private_key_of(open, tokens) : index_.key_of(*open.parent, tokens);
  const bool is_full = tokens.size() == options_.shape.tokens;
  std::vector<EncodedPage> encoded;
  if (defines_pages() && is_full) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      encoded.push_back(define_page(open, layer, *open.pages[layer].slot));
    }
  }
  if (Block* const same = index_.find(*open.parent, key, tokens)) {
    use(*same);
    take_over(open, *same);
    drop_open(open);
    return *same;
  }
  index_.seal(open, key, tokens);
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    PageEntry& page = open.pages[layer];
    page.checksum = hash_bytes(pool_.bytes(*page.slot));
    track(open, layer);
    ++counters_.pages_sealed;
  }
  if (options_.recalls() && is_full) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      if (options_.window(layer) == 0)
        make_sketch(open, layer, pool_.data(*open.pages[layer].slot));
    }
  }
  admit(open);
  if (!is_private) drop_tails_within(open);
  for (std::uint32_t layer = 0; layer < options_.layers && !tiers_.empty(); ++layer) {
    if (options_.window(layer) != 0) continue;
    if (!encoded.empty()) put_encoded(open, layer, std::move(encoded[layer]));
    if (hidden.empty()) continue;
    const std::uint64_t bytes = hidden.size() / options_.layers;
    put_encoded(open, layer,
                encode_page(plan_of(open, layer), hidden.subspan(layer * bytes, bytes)));
  }
  start_writing(open);
  return open;
}

/// Writes the pages of a sealed block while the next step computes, if they will have to leave
/// soon or are wanted on disk anyway. As many as the queue takes: the others go when they must.
void PageStore::start_writing(Block& block) {
  if (tiers_.empty() || defines_pages()) return;  // those have been written
  const bool is_short = pool_.free_slots() < slots_kept_for_steps();
  if (!options_.write_through && !is_short) return;
  const std::size_t tier = options_.write_through ? tiers_.size() - 1 : 0;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const PageEntry& page = block.pages[layer];
    if (options_.window(layer) != 0 || page.writing || page.stored != 0 || !page.slot) continue;
    if (!start_put(block, layer, tier)) return;
  }
}

bool PageStore::is_expired(const Block& block) const {
  return block.users == 0 && block.sessions == 0 && block.expires.count() != 0 &&
         block.expires <= now();
}

/// The bytes that define a page go to a tier at once: encoding the page again would give others.
void PageStore::put_encoded(Block& block, std::uint32_t layer, EncodedPage encoded) {
  const auto bytes = std::make_shared<const EncodedPage>(std::move(encoded));
  while (needs_record(block, 0) && !start_record(block)) wait();
  while (true) {
    Result<TierTicket> ticket = tiers_.front().tier->submit_put_encoded(
        identity(block, layer), block.pages[layer].checksum, *bytes);
    if (ticket.ok()) {
      block.pages[layer].writing = true;
      tiers_.front().in_flight.emplace(*ticket,
                                       [this, &block, layer, bytes](const Result<void>& outcome) {
                                         finish_put(block, layer, 0, outcome);
                                       });
      return;
    }
    if (!anything_in_flight()) return;  // it stays in the pool, and leaves it by another way
    wait();
  }
}

PagePlan PageStore::plan_of(const Block& block, std::uint32_t layer) const {
  return {options_.shape, options_.shape.tokens, layer, options_.layers, block.first_position};
}

EncodedPage PageStore::encode_page(const PagePlan& plan, Bytes source) const {
  EncodedPage encoded(options_.codec->encoded_bytes_max(options_.shape));
  encoded.resize(options_.codec->encode(plan, source, encoded));
  return encoded;
}

EncodedPage PageStore::define_page(const Block& block, std::uint32_t layer, SlotIndex slot) {
  const PagePlan plan = plan_of(block, layer);
  EncodedPage encoded = encode_page(plan, pool_.bytes(slot));
  const auto decoded = options_.codec->decode(plan, encoded, pool_.bytes(slot));
  HEADRACE_CHECK(decoded.ok(), "a codec decodes what it encoded");
  return encoded;
}

BlockFacts PageStore::facts_of(const Block& block) const {
  BlockFacts facts;
  facts.parent = index_.is_root(*block.parent) ? 0 : policy_id(*block.parent);
  facts.depth = block.first_position / options_.shape.tokens;
  facts.bytes = options_.layers * options_.shape.bytes();
  facts.priority = block.priority;
  facts.is_tail = block.tokens.size() < options_.shape.tokens;
  return facts;
}

/// A block has been sealed or found on disk.
void PageStore::admit(Block& block) {
  sealed_.emplace(policy_id(block), &block);
  store_policy_->admit(policy_id(block), facts_of(block));
  if (block.any_page_resident()) note_in_pool(block);
}

void PageStore::note_in_pool(Block& block) {
  if (std::exchange(block.in_pool, true)) return;
  pool_policy_->admit(policy_id(block), facts_of(block));
}

void PageStore::note_left_pool(Block& block) {
  if (!block.in_pool || block.any_page_resident()) return;
  block.in_pool = false;
  if (std::exchange(block.loaded_ahead, false)) prefetch_policy_->report(false);
  pool_policy_->forget(policy_id(block));
}

void PageStore::begin_text() {
  pool_policy_->begin_request();
  store_policy_->begin_request();
}

/// `to` gets the pages that it lacks. Row invariance makes them equal; if they are not, the sealed
/// one's checksum is right and the page is not taken.
void PageStore::take_over(Block& from, Block& to) {
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    PageEntry& own = from.pages[layer];
    PageEntry& page = to.pages[layer];
    // Also of what is stored: it would only be read again, and what an earlier process left may be
    // damaged.
    if (!own.slot || page.slot) continue;
    if (hash_bytes(pool_.bytes(*own.slot)) != page.checksum) continue;
    page.slot = std::exchange(own.slot, std::nullopt);
    note_in_pool(to);
    track(to, layer);
  }
}

/// Tails whose text the block holds too are of no more use.
void PageStore::drop_tails_within(Block& block) {
  std::vector<Block*> tails;
  for (Block* sibling : block.parent->children) {
    if (may_be_dropped(*sibling) && is_within(*sibling, block)) tails.push_back(sibling);
  }
  for (Block* tail : tails) drop(*tail);
}

void PageStore::drop_if_within_sibling(Block& tail) {
  const bool within = std::ranges::any_of(tail.parent->children, [&](const Block* sibling) {
    return !sibling->is_private && is_within(tail, *sibling);
  });
  if (within && may_be_dropped(tail)) drop(tail);
}

void PageStore::drop_open(Block& open) {
  for (PageEntry& page : open.pages) {
    if (page.slot) free_slot(page);
  }
  open.users = 0;
  index_.remove(open);
}

// --- Key sketches -------------------------------------------------------------------------------

std::byte* PageStore::sketch_place(std::uint32_t sketch, std::uint32_t layer) const {
  return const_cast<std::byte*>(sketches_.data()) +
         (std::size_t{sketch} * options_.layers + layer) * key_sketch_bytes(options_.shape);
}

const std::byte* PageStore::sketch(const Block& block, std::uint32_t layer) const {
  return block.sketch && block.pages[layer].is_sketched ? sketch_place(*block.sketch, layer)
                                                        : nullptr;
}

void PageStore::make_sketch(Block& block, std::uint32_t layer, const std::byte* page) {
  if (!block.sketch) {
    HEADRACE_CHECK(!free_sketches_.empty(), "more blocks are in use than have room for sketches");
    block.sketch = free_sketches_.back();
    free_sketches_.pop_back();
  }
  make_key_sketch(options_.shape, page, sketch_scratch_.data(), sketch_place(*block.sketch, layer));
  block.pages[layer].is_sketched = true;
}

void PageStore::drop_sketch(Block& block) {
  if (!block.sketch) return;
  free_sketches_.push_back(*block.sketch);
  block.sketch.reset();
  for (PageEntry& page : block.pages) page.is_sketched = false;
}

bool PageStore::may_be_dropped(const Block& block) const {
  return block.users == 0 && block.sessions == 0 && block.children.empty();
}

bool PageStore::drop_one_unused() {
  const std::optional<BlockId> victim =
      store_policy_->victim([this](BlockId id) { return may_be_dropped(*sealed_.at(id)); });
  if (!victim) return false;
  drop(*sealed_.at(*victim));
  return true;
}

void PageStore::drop(Block& block) {
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) forget_page(block, layer);
  if (block.recorded && disk_ != nullptr) disk_->erase_record(RecordKind::block, block.key);
  sealed_.erase(policy_id(block));
  store_policy_->forget(policy_id(block));
  Block& parent = *block.parent;
  index_.remove(block);
  if (!options_.reuse && !index_.is_root(parent) && may_be_dropped(parent)) drop(parent);
}

void PageStore::forget_page(Block& block, std::uint32_t layer) {
  PageEntry& page = block.pages[layer];
  while (page.writing || page.loading) wait();
  if (page.slot) {
    may_leave_no_more(block, layer);
    free_slot(block, page);
  }
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if ((page.stored >> tier & 1) != 0) tiers_[tier].tier->erase({block.key, layer});
  }
  page.stored = 0;
}

Result<void> PageStore::making_disk_room(const std::function<Result<void>()>& attempt) {
  while (true) {
    Result<void> outcome = attempt();
    const bool no_room = !outcome.ok() && outcome.error().code == ErrorCode::out_of_budget;
    if (!no_room || !free_disk_room()) return outcome;
  }
}

/// The disk is full: blocks that nobody uses go. False: there is none on it.
bool PageStore::free_disk_room() {
  const std::optional<BlockId> victim = store_policy_->victim([this](BlockId id) {
    const Block& block = *sealed_.at(id);
    if (!may_be_dropped(block)) return false;
    bool stored = false;
    for (const PageEntry& page : block.pages) {
      if (page.writing) return false;
      stored = stored || page.stored != 0;
    }
    return stored;
  });
  if (!victim) return false;
  drop(*sealed_.at(*victim));
  return true;
}

}  // namespace headrace
