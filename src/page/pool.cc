#include "page/pool.h"

#include <algorithm>

#include "base/check.h"

namespace headrace {

Result<PagePool> PagePool::create(const PageShape& shape, std::uint32_t slots,
                                  std::uint32_t slots_most) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer memory,
                      AlignedBuffer::allocate(slots_most * slot_bytes(shape)));
  return PagePool(shape, slots, slots_most, std::move(memory));
}

PagePool::PagePool(const PageShape& shape, std::uint32_t slots, std::uint32_t slots_most,
                   AlignedBuffer memory)
    : shape_(shape),
      slot_bytes_(slot_bytes(shape)),
      memory_(std::move(memory)),
      taken_(slots_most, false) {
  free_.reserve(slots_most);
  retired_.reserve(slots_most);
  for (std::uint32_t i = slots_most; i > slots; --i) retired_.push_back(SlotIndex{i - 1});
  for (std::uint32_t i = slots; i > 0; --i) free_.push_back(SlotIndex{i - 1});
}

void PagePool::set_slots(std::uint32_t slots) {
  HEADRACE_CHECK(slots <= slots_most(), "there is no address space for so many slots");
  while (this->slots() < slots) {
    free_.push_back(retired_.back());
    retired_.pop_back();
  }
  while (this->slots() > slots) {
    HEADRACE_CHECK(!free_.empty(), "a slot that is in use cannot go");
    retired_.push_back(free_.back());
    free_.pop_back();
    memory_.discard(retired_.back().value * slot_bytes_, slot_bytes_);
  }
  slots_peak_ = slots - free_slots();
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
