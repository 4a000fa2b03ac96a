#include "cli/zone_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace headrace {

std::vector<TokenSpan> spans_of_text(const Engine& engine, std::span<const TokenId> tokens,
                                     std::string_view wanted) {
  if (wanted.empty()) return {};
  std::string text;
  std::vector<std::size_t> ends;  // [token]: in `text`
  for (const TokenId token : tokens) {
    text += engine.token_bytes(token);
    ends.push_back(text.size());
  }
  const auto token_at = [&](std::size_t byte) {
    return static_cast<std::uint32_t>(std::ranges::upper_bound(ends, byte) - ends.begin());
  };
  std::vector<TokenSpan> spans;
  for (std::size_t at = text.find(wanted); at != std::string::npos;
       at = text.find(wanted, at + wanted.size())) {
    const std::uint32_t first = token_at(at);
    spans.push_back({first, token_at(at + wanted.size() - 1) + 1 - first});
  }
  return spans;
}

std::vector<TokenSpan> spans_of_roles(const Engine& engine, std::span<const TokenId> tokens) {
  // Such as a control token, a name in two pieces and a line break.
  constexpr std::size_t tokens_most = 4;
  std::vector<TokenSpan> spans;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!engine.is_control(tokens[i])) continue;
    std::size_t end = i + 1;
    while (end < std::min(i + tokens_most, tokens.size()) && !engine.is_control(tokens[end]) &&
           engine.token_bytes(tokens[end - 1]).find('\n') == std::string::npos)
      ++end;
    spans.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(end - i)});
  }
  return spans;
}

void ZoneFlags::add_to(CLI::App& command, EngineFlags& engine, bool is_all_said) {
  is_all_said_ = is_all_said;
  const std::string group = "Attention";
  CLI::Option* const text =
      command.add_option("--keep", texts_,
                         "A text that every step of recall, window and sparse reads, wherever it "
                         "occurs; may be given several times");
  engine.only_where_a_part_is_read(text->allow_extra_args(false)->type_name("TEXT")->group(group));
  CLI::Option* const roles =
      command.add_flag("--keep-roles", roles_,
                       "The same for what says who speaks: control tokens such as <|im_start|>, "
                       "and what follows in their line");
  engine.only_where_a_part_is_read(roles->group(group));
}

Result<void> ZoneFlags::make_zones(const Engine& engine, Sequence& sequence,
                                   std::span<const TokenId> unread) const {
  if (texts_.empty() && !roles_) return {};
  std::vector<TokenId> tokens(sequence.tokens().begin(), sequence.tokens().end());
  tokens.insert(tokens.end(), unread.begin(), unread.end());
  std::vector<TokenSpan> spans;
  if (roles_) spans = spans_of_roles(engine, tokens);
  for (const std::string& text : texts_) {
    const std::vector<TokenSpan> found = spans_of_text(engine, tokens, text);
    if (found.empty() && is_all_said_) {
      return Error{
          ErrorCode::invalid_argument,
          "--keep '" + text + "' is not in the prompt; give a text that is, to the letter"};
    }
    spans.insert(spans.end(), found.begin(), found.end());
  }
  for (const TokenSpan& span : spans) HEADRACE_TRY(sequence.keep(span.first, span.count));
  return {};
}

}  // namespace headrace
