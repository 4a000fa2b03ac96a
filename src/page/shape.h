// The geometry of a page and the layout of its bytes in the pool (docs/formats/page.md).
//
// A page holds K and V of all kv heads of one layer for `tokens` consecutive positions. Per kv
// head, one after the other:
//   K: [tile][dim][16 tokens]  a score of 16 tokens: one pass over dim, the tokens in the lanes
//   V: [token][dim]            a value sum: one pass over the tokens, dim in the lanes
// where a tile is 16 tokens. Element type: KvType.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "headrace/types.h"

namespace headrace {

inline constexpr std::uint32_t tile_tokens = 16;

struct PageShape {
  std::uint32_t tokens = 0;  ///< multiple of tile_tokens
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;  ///< multiple of 16
  KvType type = KvType::f16;

  bool operator==(const PageShape&) const = default;

  std::uint32_t tiles() const { return tokens / tile_tokens; }
  /// Bytes of K (or of V) of one kv head.
  std::uint64_t half_head_bytes() const {
    return std::uint64_t{tokens} * head_dim * bytes_per_element(type);
  }
  std::uint64_t k_offset(std::uint32_t kv_head) const { return kv_head * 2 * half_head_bytes(); }
  std::uint64_t v_offset(std::uint32_t kv_head) const {
    return (kv_head * 2 + 1) * half_head_bytes();
  }
  std::uint64_t bytes() const { return kv_heads * 2 * half_head_bytes(); }
};

}  // namespace headrace
