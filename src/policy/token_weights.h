// What tokens matter beyond the attention that they get: a guess from their texts alone. Control
// tokens, names, digits and rare words are asked for later more often than others.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "headrace/options.h"

namespace headrace {

/// Weighs the tokens of one text, in order.
class TokenWeights {
 public:
  static constexpr float control = 4;  ///< says who speaks, or where something begins
  static constexpr float name = 2;     ///< a capital inside of a sentence
  static constexpr float digit = 2;
  static constexpr float rare = 1.5;  ///< not seen before, in a text that is not short

  /// The largest weight that applies; 1 if none does.
  float weigh(TokenId token, std::string_view text, bool is_control);

 private:
  std::unordered_map<TokenId, std::uint32_t> counts_;
  std::uint32_t tokens_ = 0;
  bool begins_sentence_ = true;  // the next word
  bool is_in_word_ = false;
};

/// For EngineOptions::token_weights.
NewTokenWeight new_token_weights();

}  // namespace headrace
