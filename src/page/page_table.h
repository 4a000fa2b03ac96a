// PageTable: the blocks of one sequence in order, and so where its pages are. Position -> (block,
// place) and block x layer -> page in O(1). Owns no block.
#pragma once

#include <cstdint>
#include <vector>

#include "page/block.h"

namespace headrace {

class PageTable {
 public:
  PageTable(std::uint32_t layers, std::uint32_t tokens_per_block, std::uint32_t blocks_max)
      : layers_(layers), tokens_per_block_(tokens_per_block), blocks_max_(blocks_max) {
    blocks_.reserve(blocks_max);
  }

  /// Bytes that a table for `blocks_max` blocks holds.
  static std::uint64_t bytes(std::uint32_t blocks_max) { return blocks_max * sizeof(Block*); }

  std::uint32_t block_of(std::uint32_t position) const { return position / tokens_per_block_; }
  std::uint32_t first_position(std::uint32_t block) const { return block * tokens_per_block_; }

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }
  std::uint32_t blocks_max() const { return blocks_max_; }
  std::uint32_t layers() const { return layers_; }

  /// There must be room, and `block` must follow the last one.
  void add_block(Block& block);
  /// Takes the last block away, an open one, and returns it.
  Block& drop_last_block();
  /// Puts a sealed block with the same tokens in the place of one.
  void replace_block(std::uint32_t index, Block& block) { blocks_[index] = &block; }

  Block& block(std::uint32_t block) { return *blocks_[block]; }
  const Block& block(std::uint32_t block) const { return *blocks_[block]; }
  PageEntry& page(std::uint32_t layer, std::uint32_t block) { return blocks_[block]->pages[layer]; }
  const PageEntry& page(std::uint32_t layer, std::uint32_t block) const {
    return blocks_[block]->pages[layer];
  }

 private:
  std::uint32_t layers_;
  std::uint32_t tokens_per_block_;
  std::uint32_t blocks_max_;
  std::vector<Block*> blocks_;
};

}  // namespace headrace
