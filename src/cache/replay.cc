#include "cache/replay.h"

#include <cstring>

#include "base/check.h"

namespace headrace {
namespace {

SlotIndex acquire_scratch(PageStore& store) {
  const std::optional<SlotIndex> slot = store.pool().acquire();
  HEADRACE_CHECK(slot.has_value(), "the slot kept free for replay is taken");
  return *slot;
}

}  // namespace

Replay::Replay(SequenceCache& sequence, const PagePlace& lost)
    : sequence_(sequence),
      lost_(lost),
      scratch_(acquire_scratch(sequence.store())),
      fills_(sequence.store(), sequence.table(), lost.layer + 1, lost.block,
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
  stream_.start(sequence_.store(), sequence_.table(), &fills_, layer, first_position());
  stream_.set_last_page(
      {first_position(), shape().tokens, sequence_.store().pool().data(scratch_)});
  return stream_;
}

Result<void> Replay::finish() {
  stream_.finish();
  PageStore& store = sequence_.store();
  PageEntry& page = sequence_.table().page(lost_.layer, lost_.block);
  if (hash_bytes(store.pool().bytes(scratch_)) != page.checksum) {
    return Error{ErrorCode::internal, "a recomputed KV page differs from the lost one (block " +
                                          std::to_string(lost_.block) + ", layer " +
                                          std::to_string(lost_.layer) +
                                          "); this is a bug in Headrace: please report it"};
  }
  HEADRACE_TRY(store.store(sequence_.table(), lost_.layer, lost_.block, scratch_));
  ++store.counters().pages_filled_by_replay;
  return {};
}

}  // namespace headrace
