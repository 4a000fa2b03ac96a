// The geometry of a page and the layout of its bytes in the pool (docs/formats/page.md).
//
// A page holds K and V of all kv heads of one layer for `tokens` consecutive positions. Per kv
// head, one after the other:
//   K: [tile][dim][16 tokens]  a score of 16 tokens: one pass over dim, the tokens in the lanes
//   V: [token][dim]            a value sum: one pass over the tokens, dim in the lanes
// where a tile is 16 tokens. bf16 keeps pairs together, for the machine's dot products of pairs:
//   K: [tile][dim / 2][16 tokens][2]    V: [token / 2][dim][2]
// i16 has the same V and keeps 4 tokens together, in lines of 64 bytes, which can be read alone,
// with the scales of all keys behind K:
//   K: [token / 4][dim / 8][4 tokens][8], scales [token]
// and q8 keeps fours, with the scales of 32 values behind each tile:
//   K: [tile]{[dim / 4][16 tokens][4], scales [dim / 32][16 tokens]}
//   V: [tile]{[16 tokens][dim],        scales [dim / 32][16 tokens]}
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "headrace/types.h"

namespace headrace {

inline constexpr std::uint32_t tile_tokens = 16;
/// What shares a line of i16 keys.
inline constexpr std::uint32_t line_tokens = 4;
inline constexpr std::uint32_t line_dims = 8;

struct PageShape {
  std::uint32_t tokens = 0;  ///< multiple of tile_tokens
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;  ///< multiple of 16; of 32 for q8
  KvType type = KvType::f16;

  bool operator==(const PageShape&) const = default;

  std::uint32_t tiles() const { return tokens / tile_tokens; }
  std::uint64_t k_bytes() const { return tokens * key_bytes(type, head_dim); }
  std::uint64_t v_bytes() const { return tokens * value_bytes(type, head_dim); }
  /// Bytes of K and V of one kv head.
  std::uint64_t head_bytes() const { return k_bytes() + v_bytes(); }
  std::uint64_t k_offset(std::uint32_t kv_head) const { return kv_head * head_bytes(); }
  std::uint64_t v_offset(std::uint32_t kv_head) const { return k_offset(kv_head) + k_bytes(); }
  std::uint64_t bytes() const { return kv_heads * head_bytes(); }
};

/// Makes the tokens of `page`, shape.bytes(), zero from one on: what it holds of rows that were
/// written and not kept must not be part of its bytes when it is sealed.
void clear_tokens(const PageShape& shape, std::uint32_t first_token, MutableBytes page);

}  // namespace headrace
