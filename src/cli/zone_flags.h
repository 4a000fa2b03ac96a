// ZoneFlags: the options that name permanent zones, tokens which every step reads: --keep and
// --keep-roles.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/engine_flags.h"
#include "headrace/engine.h"

namespace headrace {

/// Tokens [first, first + count) of a text.
struct TokenSpan {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool operator==(const TokenSpan&) const = default;
};

/// The tokens that hold each occurrence of `wanted` in the text of `tokens`.
std::vector<TokenSpan> spans_of_text(const Engine& engine, std::span<const TokenId> tokens,
                                     std::string_view wanted);

/// What says who speaks: each control token with what follows in its line, as far as that is a word
/// or two.
std::vector<TokenSpan> spans_of_roles(const Engine& engine, std::span<const TokenId> tokens);

class ZoneFlags {
 public:
  /// Both must outlive the parsing. `is_all_said`: what is to be kept is in the first prompt, or
  /// nowhere.
  void add_to(CLI::App& command, EngineFlags& engine, bool is_all_said);

  /// Makes zones of what `unread`, which `sequence` reads next, and all before it have of these
  /// texts. Errors: those of Sequence::keep(), and invalid_argument (a text that must be there is
  /// not).
  Result<void> make_zones(const Engine& engine, Sequence& sequence,
                          std::span<const TokenId> unread) const;

 private:
  std::vector<std::string> texts_;
  bool roles_ = false;
  bool is_all_said_ = false;
};

}  // namespace headrace
