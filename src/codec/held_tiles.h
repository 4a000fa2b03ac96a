// The parts of a pool page that hold tokens. All types keep tiles of 16 tokens together, so these
// are the front of K, of the scales of i16 keys, and of V, in each kv head.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "page/shape.h"

namespace headrace {

class HeldTiles {
 public:
  HeldTiles(const PageShape& shape, std::uint32_t tokens_held)
      : shape_(shape), tiles_((tokens_held + tile_tokens - 1) / tile_tokens) {}

  std::uint32_t tiles() const { return tiles_; }
  /// Values of K, or of V, of one tile in one kv head.
  std::size_t tile_values() const { return std::size_t{tile_tokens} * shape_.head_dim; }
  /// Bytes of K of one tile without the scales of i16.
  std::size_t key_tile_bytes() const {
    return tile_tokens * value_bytes(shape_.type, shape_.head_dim);
  }
  std::size_t value_tile_bytes() const { return key_tile_bytes(); }
  /// Bytes of the scales of i16 keys of all tiles in one kv head; 0 for other types.
  std::size_t scale_bytes() const {
    return tiles_ * (tile_tokens * key_bytes(shape_.type, shape_.head_dim) - key_tile_bytes());
  }
  std::uint64_t bytes() const {
    return shape_.kv_heads * (2 * tiles_ * key_tile_bytes() + scale_bytes());
  }

  std::size_t key_offset(std::uint32_t kv_head, std::uint32_t tile) const {
    return shape_.k_offset(kv_head) + tile * key_tile_bytes();
  }
  std::size_t scale_offset(std::uint32_t kv_head) const {
    return shape_.k_offset(kv_head) + shape_.tiles() * key_tile_bytes();
  }
  std::size_t value_offset(std::uint32_t kv_head, std::uint32_t tile) const {
    return shape_.v_offset(kv_head) + tile * value_tile_bytes();
  }

  /// Calls visit(offset in the page, bytes) for each part, in the order of the page.
  template <typename Visit>
  void for_each_part(Visit visit) const {
    for (std::uint32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      visit(key_offset(kv_head, 0), tiles_ * key_tile_bytes());
      if (scale_bytes() > 0) visit(scale_offset(kv_head), scale_bytes());
      visit(value_offset(kv_head, 0), tiles_ * value_tile_bytes());
    }
  }

 private:
  PageShape shape_;
  std::uint32_t tiles_;
};

}  // namespace headrace
