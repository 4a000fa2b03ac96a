// PagePool: fast memory for pages in the attention layout, reserved at start and handed out in
// slots of one page.
//
// Lifecycle of a slot: acquire() -> filled by the forward pass or by a tier -> read by kernels ->
// release(). Used by the engine loop alone; the bytes of a slot may be written by one IO job while
// its owner waits for it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/aligned_buffer.h"
#include "headrace/result.h"
#include "page/shape.h"

namespace headrace {

/// Names a slot of the pool.
struct SlotIndex {
  std::uint32_t value = 0;
  bool operator==(const SlotIndex&) const = default;
};

class PagePool {
 public:
  /// Room for `slots` pages of `shape`. The memory is touched only when a slot is used. Errors:
  /// out_of_budget.
  static Result<PagePool> create(const PageShape& shape, std::uint32_t slots) {
    return create(shape, slots, slots);
  }
  /// The same, with address space for up to `slots_most` (set_slots()).
  static Result<PagePool> create(const PageShape& shape, std::uint32_t slots,
                                 std::uint32_t slots_most);
  /// From now on there are `slots`, at most slots_most(). What goes must be free, and its memory
  /// goes back to the system.
  void set_slots(std::uint32_t slots);

  /// A free slot with undefined contents, or nothing when all are taken.
  std::optional<SlotIndex> acquire();
  /// Gives a slot back. It must have been acquired.
  void release(SlotIndex slot);

  std::byte* data(SlotIndex slot) { return memory_.data() + slot.value * slot_bytes_; }
  const std::byte* data(SlotIndex slot) const { return memory_.data() + slot.value * slot_bytes_; }
  MutableBytes bytes(SlotIndex slot) { return {data(slot), shape_.bytes()}; }

  const PageShape& shape() const { return shape_; }
  std::uint32_t slots() const {
    return static_cast<std::uint32_t>(taken_.size() - retired_.size());
  }
  std::uint32_t slots_most() const { return static_cast<std::uint32_t>(taken_.size()); }
  std::uint32_t free_slots() const { return static_cast<std::uint32_t>(free_.size()); }
  /// Most slots that were taken at once, since set_slots().
  std::uint32_t slots_peak() const { return slots_peak_; }

  /// Bytes that one slot takes: the page, rounded up so that every slot starts on a device block.
  static std::uint64_t slot_bytes(const PageShape& shape) { return round_up(shape.bytes(), 4096); }

 private:
  PagePool(const PageShape& shape, std::uint32_t slots, std::uint32_t slots_most,
           AlignedBuffer memory);

  PageShape shape_;
  std::uint64_t slot_bytes_;
  AlignedBuffer memory_;
  std::vector<SlotIndex> free_;  // last in, first out: the warmest slot is reused first
  std::vector<SlotIndex> retired_;
  std::vector<bool> taken_;
  std::uint32_t slots_peak_ = 0;
};

}  // namespace headrace
