#include "cache/replay.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace headrace {
namespace {

SlotIndex acquire_scratch(PageStore& store) {
  const std::optional<SlotIndex> slot = store.pool().acquire();
  HEADRACE_CHECK(slot.has_value(), "the slot kept free for replay is taken");
  return *slot;
}

Error other_bytes(const PagePlace& lost) {
  return {ErrorCode::internal, "a recomputed KV page differs from the lost one (block " +
                                   std::to_string(lost.block) + ", layer " +
                                   std::to_string(lost.layer) +
                                   "); this is a bug in Headrace: please report it"};
}

/// Keeps the page in `slot` in place of the lost one, which had the same bytes.
Result<void> store_recomputed(SequenceCache& sequence, const PagePlace& lost, SlotIndex slot) {
  PageStore& store = sequence.store();
  Block& block = sequence.table().block(lost.block);
  PageEntry& page = sequence.table().page(lost.layer, lost.block);
  if (store.defines_pages()) {
    store.define_page(block, lost.layer, slot);
  }
  const Digest128 checksum = hash_bytes(store.pool().bytes(slot));
  if (block.is_private) {
    // Steps that read a part of the tokens had made it; this one is exact, and nobody else has the
    // other one.
    page.checksum = checksum;
    if (page.is_sketched) store.make_sketch(block, lost.layer, store.pool().data(slot));
  }
  if (checksum != page.checksum) return other_bytes(lost);
  HEADRACE_TRY(store.store(block, lost.layer, slot));
  ++store.counters().pages_filled_by_replay;
  return {};
}

}  // namespace

Replay::Replay(SequenceCache& sequence, const PagePlace& lost)
    : sequence_(sequence),
      lost_(lost),
      scratch_(acquire_scratch(sequence.store())),
      fills_(sequence.store(), sequence.table(), lost.layer + 1,
             sequence.table().first_position(lost.block), lost.block,
             sequence.store().stream_slots() - 1) {}

Replay::~Replay() {
  stream_.finish();
  sequence_.store().pool().release(scratch_);
}

std::span<const TokenId> Replay::tokens() const {
  return sequence_.tokens().subspan(first_position(), shape().tokens);
}

std::uint32_t Replay::first_position() const {
  return sequence_.table().first_position(lost_.block);
}

std::span<const RowSlice> Replay::rows(std::uint32_t) {
  slice_ = {sequence_.store().pool().data(scratch_), 0, shape().tokens, 0};
  return {&slice_, 1};
}

PageStream& Replay::attend(std::uint32_t layer) {
  stream_.start(sequence_.store(), sequence_.table(), &fills_, layer, first_position(),
                first_position());
  stream_.set_last_page(
      {first_position(), shape().tokens, sequence_.store().pool().data(scratch_)});
  return stream_;
}

Result<void> Replay::finish() {
  stream_.finish();
  return store_recomputed(sequence_, lost_, scratch_);
}

Result<void> Rebuild::finish() {
  // Sealing has merged the blocks of both: the lost page is there again if it has the same bytes.
  if (!original_.table().page(lost_.layer, lost_.block).exists()) return other_bytes(lost_);
  const auto left = original_.missing_blocks().value_or(SequenceCache::Missing());
  original_.store().counters().pages_filled_by_replay += missing_ - std::min(missing_, left.pages);
  return {};
}

}  // namespace headrace
