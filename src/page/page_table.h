// PageTable: where the pages of one sequence are. Position -> (block, place) and block x layer ->
// page in O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "page/pool.h"

namespace headrace {

/// One page of a sequence. Open until its block is full, then sealed for ever (invariant 3).
struct PageEntry {
  std::optional<SlotIndex> slot;  ///< where it is resident
  bool stored = false;            ///< a tier has it
  Digest128 checksum;             ///< of the bytes; set when sealed
};

/// One block of a sequence.
struct BlockEntry {
  Digest128 key;  ///< set when sealed
  bool sealed = false;
};

class PageTable {
 public:
  PageTable(std::uint32_t layers, std::uint32_t tokens_per_block, std::uint32_t blocks_max)
      : layers_(layers), tokens_per_block_(tokens_per_block), blocks_max_(blocks_max) {
    blocks_.reserve(blocks_max);
    pages_.reserve(std::size_t{blocks_max} * layers);
  }

  /// Bytes that a table for `blocks_max` blocks holds.
  static std::uint64_t bytes(std::uint32_t layers, std::uint32_t blocks_max) {
    return blocks_max * (sizeof(BlockEntry) + std::uint64_t{layers} * sizeof(PageEntry));
  }

  std::uint32_t block_of(std::uint32_t position) const { return position / tokens_per_block_; }
  std::uint32_t first_position(std::uint32_t block) const { return block * tokens_per_block_; }

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }
  std::uint32_t blocks_max() const { return blocks_max_; }
  std::uint32_t layers() const { return layers_; }

  /// Appends an open block without slots. There must be room.
  void add_block();
  /// Takes an open block away again. Its slots must have been given back.
  void drop_last_block();

  BlockEntry& block(std::uint32_t block) { return blocks_[block]; }
  const BlockEntry& block(std::uint32_t block) const { return blocks_[block]; }
  PageEntry& page(std::uint32_t layer, std::uint32_t block) {
    return pages_[std::size_t{block} * layers_ + layer];
  }
  const PageEntry& page(std::uint32_t layer, std::uint32_t block) const {
    return pages_[std::size_t{block} * layers_ + layer];
  }

 private:
  std::uint32_t layers_;
  std::uint32_t tokens_per_block_;
  std::uint32_t blocks_max_;
  std::vector<BlockEntry> blocks_;
  std::vector<PageEntry> pages_;  // [block][layer]
};

}  // namespace headrace
