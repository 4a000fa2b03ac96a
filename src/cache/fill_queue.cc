#include "cache/fill_queue.h"

#include <algorithm>

#include "base/check.h"

namespace headrace {

FillQueue::FillQueue(PageStore& store, PageTable& table, std::uint32_t layers_end,
                     std::uint32_t position, std::uint32_t blocks_end, std::uint32_t depth)
    : store_(store),
      table_(table),
      layers_end_(layers_end),
      position_(position),
      blocks_end_(blocks_end),
      depth_(depth),
      batch_(std::max(1U, depth / 4)),
      next_block_(store.options().first_block(0, position)) {
  pump();
}

FillQueue::~FillQueue() {
  if (store_.is_broken_off()) return;
  for (Fill& fill : fills_) {
    while (!fill.finished) store_.wait();
    store_.pool().release(fill.slot);
    store_.note_streaming(-1);
  }
}

void FillQueue::fill_layer(std::uint32_t layer, std::span<const std::uint8_t> wanted) {
  HEADRACE_CHECK(fills_.empty(), "a layer begins before the one before it has been read");
  wanted_ = wanted;
  next_layer_ = layer;
  layers_end_ = layer + 1;
  next_block_ = store_.options().first_block(layer, position_);
  pump();
}

bool FillQueue::find_next() {
  while (next_layer_ < layers_end_) {
    for (; next_block_ < blocks_end_; ++next_block_) {
      const bool is_wanted = wanted_.empty() || wanted_[next_block_] != 0;
      if (is_wanted && !table_.page(next_layer_, next_block_).slot) return true;
    }
    if (++next_layer_ < layers_end_)
      next_block_ = store_.options().first_block(next_layer_, position_);
  }
  return false;
}

void FillQueue::pump() {
  if (!fills_.empty() && held_ + batch_ > depth_) return;
  while (held_ < depth_ && find_next()) {
    const std::optional<SlotIndex> slot = store_.pool().acquire();
    HEADRACE_CHECK(slot.has_value(), "the slots kept free for streaming are taken");
    Fill& fill = fills_.emplace_back();
    fill.layer = next_layer_;
    fill.block = next_block_;
    fill.slot = *slot;
    const bool started = store_.start_load(table_.block(fill.block), fill.layer, fill.slot,
                                           [&fill](Result<void> outcome) {
                                             fill.finished = true;
                                             fill.outcome = std::move(outcome);
                                           });
    if (!started && !fill.finished) {
      // The tier's queue is full: try again when something has finished.
      fills_.pop_back();
      store_.pool().release(*slot);
      return;
    }
    ++held_;
    store_.note_streaming(1);
    ++next_block_;
  }
}

const Fill* FillQueue::front(std::uint32_t layer, std::uint32_t block) const {
  if (fills_.empty()) return nullptr;
  const Fill& fill = fills_.front();
  return fill.layer == layer && fill.block == block ? &fill : nullptr;
}

void FillQueue::wait_front() {
  std::size_t last = 0;
  while (last + 1 < std::min<std::size_t>(batch_, fills_.size()) &&
         fills_[last + 1].layer == fills_.front().layer) {
    ++last;
  }
  while (!fills_[last].finished) store_.wait();
  while (!fills_.front().finished) store_.wait();
}

SlotIndex FillQueue::take_front() {
  const SlotIndex slot = fills_.front().slot;
  fills_.pop_front();
  return slot;
}

void FillQueue::give_back(SlotIndex slot) {
  store_.pool().release(slot);
  leave();
}

void FillQueue::leave() {
  store_.note_streaming(-1);
  --held_;
}

}  // namespace headrace
