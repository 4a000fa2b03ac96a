// PromptLookup: guesses the next tokens of a text from what it has said before (prompt lookup, also
// called n-gram speculation; Saxena 2023). A guess costs a few rows in a step that is bound by
// memory, and changes nothing: what the model would not have said is not kept.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "headrace/types.h"

namespace headrace {

/// One sequence's tokens, indexed by their last few. Not thread-safe.
class PromptLookup {
 public:
  /// Adds a token at the end.
  void add(TokenId token);

  /// What followed the latest earlier place with the same last three tokens, or else the same last
  /// two: at most `count` tokens, none when there is no such place.
  std::vector<TokenId> guess(std::size_t count) const;

 private:
  static constexpr std::size_t shortest = 2;
  static constexpr std::size_t longest = 3;

  std::uint64_t key_of_last(std::size_t length) const;

  std::vector<TokenId> tokens_;
  /// Of each run of 2 and 3 tokens but the one at the end: where the token after it stands.
  std::unordered_map<std::uint64_t, std::uint32_t> after_;
};

}  // namespace headrace
