#include "policy/token_weights.h"

#include <algorithm>
#include <memory>

namespace headrace {
namespace {

/// In the first ones everything is new.
constexpr std::uint32_t tokens_without_rare = 256;

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) {
  return is_upper(c) || (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
}
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool ends_sentence(char c) { return c == '.' || c == '!' || c == '?' || c == '\n'; }

}  // namespace

float TokenWeights::weigh(TokenId token, std::string_view text, bool is_control) {
  const bool is_new = counts_[token]++ == 0 && tokens_ >= tokens_without_rare;
  ++tokens_;
  if (is_control) {
    begins_sentence_ = true;
    is_in_word_ = false;
    return control;
  }
  float weight = is_new ? rare : 1;
  if (std::ranges::any_of(text, is_digit)) weight = std::max(weight, digit);
  for (const char c : text) {
    if (is_letter(c)) {
      if (is_upper(c) && !is_in_word_ && !begins_sentence_) weight = std::max(weight, name);
      begins_sentence_ = false;
    } else if (!is_blank(c) || c == '\n') {
      begins_sentence_ = ends_sentence(c);
    }
    is_in_word_ = is_letter(c);
  }
  return weight;
}

NewTokenWeight new_token_weights() {
  return [] {
    return [weights = std::make_shared<TokenWeights>()](TokenId token, std::string_view text,
                                                        bool is_control) {
      return weights->weigh(token, text, is_control);
    };
  };
}

}  // namespace headrace
