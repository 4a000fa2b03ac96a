// What a kv head reads of a block where a step reads a part of the tokens.
#pragma once

#include <cstdint>

namespace headrace {

/// What a kv head reads of a block.
struct BlockChoice {
  static constexpr std::uint32_t none = 0xFFFF'FFFF;
  bool is_whole = false;
  std::uint32_t whole_from = none;  ///< in a window: every token of the block from this one on
  std::uint32_t first_group = 0;    ///< of the kv head's chosen groups
  std::uint32_t groups = 0;         ///< kernel::group_tokens each
  bool is_empty() const { return !is_whole && whole_from == none && groups == 0; }
};

/// What choices came to.
struct RecallCounters {
  std::uint64_t choices = 0;      ///< one per step, layer and kv head, or for all kv heads
  std::uint64_t tokens_read = 0;  ///< of all choices together
  double mass_left_out = 0;       ///< the shares of attention that were not read, as estimated
};

}  // namespace headrace
