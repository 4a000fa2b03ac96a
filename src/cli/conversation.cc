#include "cli/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace headrace {

std::optional<std::size_t> unread_from(const Engine& engine, std::span<const TokenId> read,
                                       std::span<const TokenId> full) {
  const auto same = std::mismatch(read.begin(), read.end(), full.begin(), full.end());
  auto common = static_cast<std::size_t>(same.first - read.begin());
  if (common == read.size()) return common < full.size() ? std::optional(common) : std::nullopt;

  std::string read_bytes;
  for (const TokenId token : read.subspan(common)) read_bytes += engine.token_bytes(token);
  std::string full_bytes;
  while (common < full.size() && full_bytes.size() < read_bytes.size()) {
    full_bytes += engine.token_bytes(full[common]);
    ++common;
  }
  if (full_bytes != read_bytes || common == full.size()) return std::nullopt;
  return common;
}

Result<Generation> Conversation::say(const std::string& text, const GenerateOptions& options) {
  messages_.push_back({"user", text});
  const bool begins_topic = on_topic_shift_ && topics_.begins_topic(text);
  Result<Generation> generation = answer(options, begins_topic);
  const bool taken_back =
      !generation.ok() || (generation->finish_reason == "cancelled" && generation->tokens.empty());
  if (taken_back) {
    messages_.pop_back();
  } else {
    note_message({"assistant", generation->text});
  }
  return generation;
}

/// One that is new to the topic, too.
void Conversation::note_message(ChatMessage message) {
  if (on_topic_shift_) topics_.add(message.content);
  messages_.push_back(std::move(message));
}

Result<Generation> Conversation::answer(const GenerateOptions& options, bool begins_topic) {
  HEADRACE_TRY_ASSIGN(const std::vector<TokenId> full, engine_.chat_prompt(messages_));
  if (full.size() >= engine_.context()) {
    return Error{ErrorCode::invalid_argument,
                 "the conversation would have " + std::to_string(full.size()) +
                     " tokens and the context has " + std::to_string(engine_.context()) +
                     "; say less, or start anew with /reset"};
  }
  if (!saved_tokens_.empty()) {
    HEADRACE_TRY_ASSIGN(sequence_, engine_.new_sequence());
    HEADRACE_TRY(sequence_->append(saved_tokens_, options.on_progress, nullptr));
    saved_tokens_.clear();
  }
  std::optional<std::size_t> from;
  if (sequence_ != nullptr) from = unread_from(engine_, sequence_->tokens(), full);
  if (!from.has_value()) {
    sequence_.reset();  // first, so that its memory is free for the new one
    HEADRACE_TRY_ASSIGN(sequence_, engine_.new_sequence());
    from = 0;
  }
  prompt_ = full;
  prompt_tokens_before_ = *from;
  std::span<const TokenId> unread = std::span(full).subspan(*from);
  HEADRACE_TRY(zones_.make_zones(engine_, *sequence_, unread));
  if (begins_topic && unread.size() > 1) {
    HEADRACE_TRY(leave_topic(unread.first(unread.size() - 1), options));
    unread = unread.last(1);
  }
  return sequence_->generate(unread, options);
}

/// Reads the beginning of a topic, and lets the one before it leave memory. In this order: reading
/// needs all of the text, and leaves as much of it in memory as there is room for.
Result<void> Conversation::leave_topic(std::span<const TokenId> unread,
                                       const GenerateOptions& options) {
  const auto end = static_cast<std::uint32_t>(sequence_->tokens().size());
  HEADRACE_TRY(sequence_->append(unread, options.on_progress, nullptr));
  if (end > topic_begin_) {
    on_topic_shift_(sequence_->purge(
        {.keep_ratio = 0, .first_token = topic_begin_, .tokens = end - topic_begin_}));
  }
  topic_begin_ = end;
  return {};
}

Result<void> Conversation::resume(const std::string& session) {
  session_ = session;
  Result<SessionState> state = engine_.read_session(session);
  if (!state.ok() && state.error().code == ErrorCode::not_found) return {};
  if (!state.ok()) return std::move(state).error();
  const auto note = nlohmann::json::parse(state->note, nullptr, false);
  if (!note.is_array()) {
    return Error{ErrorCode::corrupt, "session '" + session +
                                         "' holds no conversation; it was saved by `headrace run "
                                         "--raw`, which can go on with it"};
  }
  for (const nlohmann::json& message : note) {
    note_message({message.value("role", ""), message.value("content", "")});
  }
  saved_tokens_ = std::move(state->tokens);
  return {};
}

Result<void> Conversation::save() {
  if (sequence_ == nullptr) return {};
  nlohmann::json note = nlohmann::json::array();
  for (const ChatMessage& message : messages_) {
    note.push_back({{"role", message.role}, {"content", message.content}});
  }
  constexpr auto replace = nlohmann::json::error_handler_t::replace;
  return engine_.save_session(session_, *sequence_, note.dump(-1, ' ', false, replace));
}

Result<std::uint64_t> Conversation::purge(const PurgeOptions& options) {
  if (sequence_ == nullptr) return std::uint64_t{0};
  return sequence_->purge(options);
}

void Conversation::reset() {
  messages_.clear();
  saved_tokens_.clear();
  topics_.reset();
  topic_begin_ = 0;
  sequence_.reset();
}

}  // namespace headrace
