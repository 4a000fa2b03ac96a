// Finds text that defeats the cache: long runs of one token, or of a few that come again and again.
// All that repeats gets attention alike, so none of it stands out, and what is kept in memory is
// chosen by chance. Pure: no IO.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headrace/types.h"

namespace headrace {

/// Tokens of which each, from the second period on, is the one `period` before it.
struct Repetition {
  std::uint32_t first_token = 0;
  std::uint32_t tokens = 0;
  std::uint32_t period = 0;  ///< the shortest there is
  bool operator==(const Repetition&) const = default;
};

struct RepetitionOptions {
  std::uint32_t tokens_least = 64;
  std::uint32_t period_most = 16;
};

/// All of them in order. They do not overlap.
std::vector<Repetition> find_repetitions(std::span<const TokenId> tokens,
                                         const RepetitionOptions& options = {});

}  // namespace headrace
