#include "runtime/prompt_lookup.h"

#include <algorithm>

namespace headrace {

/// Vocabularies have less than 2^21 tokens, so three fit; a larger token only makes guesses worse.
std::uint64_t PromptLookup::key_of_last(std::size_t length) const {
  constexpr int bits = 21;
  std::uint64_t key = 0;
  for (const TokenId token : std::span(tokens_).last(length))
    key = key << bits | static_cast<std::uint64_t>(token);
  return key << 1 | (length - shortest);
}

void PromptLookup::add(TokenId token) {
  for (std::size_t length = shortest; length <= std::min(longest, tokens_.size()); ++length)
    after_[key_of_last(length)] = static_cast<std::uint32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::vector<TokenId> PromptLookup::guess(std::size_t count) const {
  for (std::size_t length = std::min(longest, tokens_.size()); length >= shortest; --length) {
    const auto found = after_.find(key_of_last(length));
    if (found == after_.end()) continue;
    const auto following = std::span(tokens_).subspan(found->second);
    const auto guessed = following.first(std::min(count, following.size()));
    return {guessed.begin(), guessed.end()};
  }
  return {};
}

}  // namespace headrace
