// The order in which a page's bytes are stored: by groups of 8 tokens, so that a few tokens can be
// read and verified alone, and a page with few tokens takes little room. A group holds, for one kv
// head after the other, K and then V of its tokens, each with its scales behind it
// (docs/formats/segment.md).
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "headrace/result.h"
#include "page/shape.h"

namespace headrace {

inline constexpr std::uint32_t group_tokens = 8;

constexpr std::uint32_t group_count(std::uint32_t tokens_held) {
  return (tokens_held + group_tokens - 1) / group_tokens;
}

/// Bytes of one group.
inline std::uint64_t group_bytes(const PageShape& shape) {
  return shape.bytes() / (shape.tokens / group_tokens);
}

/// Bytes of all groups with a token in them.
inline std::uint64_t grouped_bytes(const PageShape& shape, std::uint32_t tokens_held) {
  return group_count(tokens_held) * group_bytes(shape);
}

/// Copies the groups that hold tokens from a pool page into the front of `out` and returns their
/// bytes. The rows of the last group behind `tokens_held` come along as they are.
std::uint64_t encode_groups(const PageShape& shape, std::uint32_t tokens_held, Bytes page,
                            MutableBytes out);

/// Copies one group, group_bytes(), from a pool page.
void encode_group(const PageShape& shape, std::uint32_t group, Bytes page, MutableBytes out);

/// The way back. Groups without tokens become zero.
void decode_groups(const PageShape& shape, std::uint32_t tokens_held, Bytes groups,
                   MutableBytes page);

/// Puts what one kv head has in a group into its place in a pool page. The rest of the page stays.
void decode_group(const PageShape& shape, std::uint32_t kv_head, std::uint32_t group, Bytes bytes,
                  std::byte* page);

/// Asked about the one or two groups of a tile, of which the first is number `first`.
using GroupCheck = std::function<Result<void>(std::uint32_t first, Bytes groups)>;

/// The same, with a check of each tile's groups just before they are copied, so that they come from
/// memory once. Errors: those of `check_groups`; the page means nothing then.
Result<void> decode_groups(const PageShape& shape, std::uint32_t tokens_held, Bytes groups,
                           MutableBytes page, const GroupCheck& check_groups);

}  // namespace headrace
