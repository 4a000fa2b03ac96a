#include "page/pool.h"

#include <algorithm>

#include "base/check.h"

namespace headrace {

Result<PagePool> PagePool::create(const PageShape& shape, std::uint32_t slots) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer memory, AlignedBuffer::allocate(slots * slot_bytes(shape)));
  return PagePool(shape, slots, std::move(memory));
}

PagePool::PagePool(const PageShape& shape, std::uint32_t slots, AlignedBuffer memory)
    : shape_(shape),
      slot_bytes_(slot_bytes(shape)),
      memory_(std::move(memory)),
      taken_(slots, false) {
  free_.reserve(slots);
  for (std::uint32_t i = slots; i > 0; --i) free_.push_back(SlotIndex{i - 1});
}

std::optional<SlotIndex> PagePool::acquire() {
  if (free_.empty()) return std::nullopt;
  const SlotIndex slot = free_.back();
  free_.pop_back();
  taken_[slot.value] = true;
  slots_peak_ = std::max(slots_peak_, slots() - free_slots());
  return slot;
}

void PagePool::release(SlotIndex slot) {
  HEADRACE_CHECK(slot.value < taken_.size() && taken_[slot.value],
                 "a slot is released that nobody holds");
  taken_[slot.value] = false;
  free_.push_back(slot);
}

}  // namespace headrace
