#include "page/shape.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

/// Arrays of `tokens` tokens, one after the other, with `unit` bytes a token: clears the tokens of
/// each from `first` on.
void clear_lanes(std::byte* arrays, std::uint64_t count, std::uint32_t unit, std::uint32_t first,
                 std::uint32_t tokens = tile_tokens) {
  if (first >= tokens) return;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memset(arrays + (i * tokens + first) * unit, 0, (tokens - first) * unit);
  }
}

/// [token][dim], or [token / 2][dim][2].
void clear_rows(std::byte* rows, const PageShape& shape, std::uint32_t first, bool pairs) {
  const std::uint64_t row_bytes = shape.v_bytes() / shape.tokens;
  const std::uint32_t aligned = pairs ? (first + 1) / 2 * 2 : first;
  std::memset(rows + aligned * row_bytes, 0, (shape.tokens - aligned) * row_bytes);
  if (aligned == first) return;
  std::byte* const pair = rows + (first - 1) * row_bytes;
  for (std::uint32_t dim = 0; dim < shape.head_dim; ++dim) std::memset(pair + dim * 4 + 2, 0, 2);
}

}  // namespace

void clear_tokens(const PageShape& shape, std::uint32_t first_token, MutableBytes page) {
  const std::uint32_t dim = shape.head_dim;
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    std::byte* const k = page.data() + shape.k_offset(head);
    std::byte* const v = page.data() + shape.v_offset(head);
    for (std::uint32_t tile = first_token / tile_tokens; tile < shape.tiles(); ++tile) {
      const std::uint32_t before = tile * tile_tokens;
      const std::uint32_t first = first_token > before ? first_token - before : 0;
      switch (shape.type) {
        case KvType::f32:
          clear_lanes(k + std::uint64_t{before} * dim * 4, dim, 4, first);
          break;
        case KvType::f16:
          clear_lanes(k + std::uint64_t{before} * dim * 2, dim, 2, first);
          break;
        case KvType::i16:
          clear_lanes(k + std::uint64_t{shape.tokens} * dim * 2 + before * 2, 1, 2, first);
          for (std::uint32_t token = 0; token < tile_tokens; token += line_tokens) {
            clear_lanes(k + std::uint64_t{before + token} * dim * 2, dim / line_dims, line_dims * 2,
                        first > token ? first - token : 0, line_tokens);
          }
          break;
        case KvType::bf16:
          clear_lanes(k + std::uint64_t{before} * dim * 2, dim / 2, 4, first);
          break;
        case KvType::q8: {
          const std::uint64_t tile_bytes = tile_tokens * key_bytes(KvType::q8, dim);
          clear_lanes(k + tile * tile_bytes, dim / 4, 4, first);
          clear_lanes(k + tile * tile_bytes + tile_tokens * dim, dim / 32, 2, first);
          clear_lanes(v + tile * tile_bytes, 1, dim, first);
          clear_lanes(v + tile * tile_bytes + tile_tokens * dim, dim / 32, 2, first);
          break;
        }
      }
    }
    if (shape.type == KvType::q8) continue;
    clear_rows(v, shape, first_token, shape.type == KvType::bf16 || shape.type == KvType::i16);
  }
}

}  // namespace headrace
