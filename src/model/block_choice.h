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

/// What was measured of steps that were certified (AttentionOptions::certify).
struct CertifiedCounters {
  std::uint64_t heads = 0;       ///< one per step, layer and query head
  double mass_not_read_sum = 0;  ///< the shares of their attention that were not read
  double mass_not_read_most = 0;
  std::uint64_t layers = 0;  ///< one per step and layer
  /// How far what attention gave is from what all tokens would have given: the length of the
  /// difference, over all query heads, relative to that of the latter.
  double error_sum = 0;
  double error_most = 0;

  void note_head(double mass_not_read);
  void note_layer(double error);
};

}  // namespace headrace
