#include "policy/topic_shift.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace headrace {
namespace {

constexpr std::uint32_t stem_letters = 5;
/// Words count from one letter more than this on, up to so many more.
constexpr std::uint32_t letters_ignored = 3;
constexpr std::uint32_t weight_most = 5;
/// What is said must weigh as much, and no larger part of it be known, to begin a topic.
constexpr std::uint32_t weight_least = 12;
constexpr double known_most = 0.1;

bool is_letter(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

/// Bytes of the UTF-8 character that begins with `c`.
std::size_t bytes_of(unsigned char c) { return c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4; }

/// How much each word weighs, by its first letters.
using Weights = std::unordered_map<std::string, std::uint32_t>;

class WordReader {
 public:
  Weights read(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const auto c = static_cast<unsigned char>(text[at]);
      const std::string_view letter = text.substr(at, bytes_of(c));
      at += letter.size();
      if (!is_letter(c)) {
        end_word();
      } else if (letter.size() > 2) {  // mostly a word, or a syllable
        end_word();
        note(std::string(letter), 1);
      } else {
        add_letter(letter);
      }
    }
    end_word();
    return std::move(weights_);
  }

 private:
  void add_letter(std::string_view letter) {
    if (letters_++ >= stem_letters) return;
    const bool is_capital = letter[0] >= 'A' && letter[0] <= 'Z';
    stem_ += letter;
    if (is_capital) stem_.back() = static_cast<char>(letter[0] - 'A' + 'a');
  }
  void end_word() {
    if (letters_ > letters_ignored)
      note(std::move(stem_), std::min(letters_ - letters_ignored, weight_most));
    stem_.clear();
    letters_ = 0;
  }
  void note(std::string stem, std::uint32_t weight) {
    std::uint32_t& noted = weights_[std::move(stem)];
    noted = std::max(noted, weight);
  }

  Weights weights_;
  std::string stem_;
  std::uint32_t letters_ = 0;
};

}  // namespace

bool TopicShift::begins_topic(std::string_view said) {
  const Weights words = WordReader().read(said);
  std::uint32_t weight = 0;
  std::uint32_t known = 0;
  for (const auto& [stem, own] : words) {
    weight += own;
    known += words_.contains(stem) ? own : 0;
  }
  const bool begins = !words_.empty() && weight >= weight_least && known <= known_most * weight;
  if (begins) words_.clear();
  for (const auto& [stem, own] : words) words_.insert(stem);
  return begins;
}

void TopicShift::add(std::string_view text) {
  for (const auto& [stem, own] : WordReader().read(text)) words_.insert(stem);
}

}  // namespace headrace
