#include "policy/repetition.h"

#include <algorithm>

namespace headrace {
namespace {

/// How many tokens from the first on repeat with this period.
std::size_t repeated(std::span<const TokenId> tokens, std::size_t period) {
  if (tokens.size() <= period) return 0;
  const auto [end, other] = std::mismatch(tokens.begin() + static_cast<std::ptrdiff_t>(period),
                                          tokens.end(), tokens.begin());
  return static_cast<std::size_t>(end - tokens.begin());
}

}  // namespace

std::vector<Repetition> find_repetitions(std::span<const TokenId> tokens,
                                         const RepetitionOptions& options) {
  std::vector<Repetition> found;
  for (std::size_t first = 0; first + options.tokens_least <= tokens.size();) {
    std::size_t length = 1;
    for (std::uint32_t period = 1; period <= options.period_most; ++period) {
      const std::size_t run = repeated(tokens.subspan(first), period);
      if (run < options.tokens_least || run < std::size_t{2} * period) continue;
      found.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(run), period});
      length = run;
      break;
    }
    first += length;
  }
  return found;
}

}  // namespace headrace
