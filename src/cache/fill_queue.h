// FillQueue: read-ahead for one step. The pages that a step will miss are known in advance and in
// order (layer by layer, block by block), so loads run ahead of attention across layers as far as
// there are free slots.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "cache/page_store.h"

namespace headrace {

/// A page on its way into a slot.
struct Fill {
  std::uint32_t layer = 0;
  std::uint32_t block = 0;
  SlotIndex slot;
  bool finished = false;
  Result<void> outcome;
};

class FillQueue {
 public:
  /// Fills for all pages without a slot that rows from `position` on read in layers [0, layers_end)
  /// and blocks before `blocks_end`, at most `depth` at once.
  FillQueue(PageStore& store, PageTable& table, std::uint32_t layers_end, std::uint32_t position,
            std::uint32_t blocks_end, std::uint32_t depth);
  /// Waits for what is in flight and gives the slots back.
  ~FillQueue();
  FillQueue(const FillQueue&) = delete;
  FillQueue& operator=(const FillQueue&) = delete;

  /// What a layer needs, said when it comes: [block] not 0, or all of them. What was asked for
  /// before has been taken.
  void fill_layer(std::uint32_t layer, std::span<const std::uint8_t> wanted);
  /// Starts what can be started, several at once: threads are woken for more than one page then.
  void pump();
  /// The oldest fill that was not taken yet, if it is for this page.
  const Fill* front(std::uint32_t layer, std::uint32_t block) const;
  /// Waits until the oldest fill is finished, and some more of its layer: waking up costs as much
  /// as attending to a page.
  void wait_front();
  /// Takes the oldest fill: its slot now belongs to the caller until give_back().
  SlotIndex take_front();
  void give_back(SlotIndex slot);
  /// A slot that was taken stays with its page.
  void leave();

 private:
  bool find_next();

  PageStore& store_;
  PageTable& table_;
  std::uint32_t layers_end_;
  const std::uint32_t position_;
  const std::uint32_t blocks_end_;
  const std::uint32_t depth_;
  const std::uint32_t batch_;
  std::span<const std::uint8_t> wanted_;  // empty: all
  std::uint32_t held_ = 0;                // slots in fills_ or taken
  std::uint32_t next_layer_ = 0;          // where the search for the next missing page goes on
  std::uint32_t next_block_ = 0;
  std::deque<Fill> fills_;  // a deque: elements stay in place while jobs point at them
};

}  // namespace headrace
