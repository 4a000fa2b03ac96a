// Conversation: turns of a chat over one growing Sequence, so that each turn reads only what is
// new.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/zone_flags.h"
#include "headrace/engine.h"
#include "policy/topic_shift.h"

namespace headrace {

/// Where in `full` the unread part starts, given that `read` is in the cache; nullopt if `full`
/// does not continue it.
///
/// Usually `read` is a prefix of `full`. An answer may however have been generated in other tokens
/// than its text is tokenised to ("un"+"happy" instead of "unhappy"). Then the cache is as good: it
/// holds the same text. So bytes decide: if the bytes of `read` are a prefix of those of `full` and
/// end at a token border of `full`, the rest of `full` continues it. Otherwise (the template
/// changed something that was read, or the answer was cut inside a character) the conversation has
/// to be read anew.
std::optional<std::size_t> unread_from(const Engine& engine, std::span<const TokenId> read,
                                       std::span<const TokenId> full);

class Conversation {
 public:
  /// `engine` must outlive this.
  explicit Conversation(Engine& engine, ZoneFlags zones = {})
      : engine_(engine), zones_(std::move(zones)) {}

  /// From now on, before resume() and say(): when what the user says begins a new topic, the one
  /// before leaves memory behind the reading of it, until a step reads it. `on_shift` hears of
  /// that, with what Sequence::purge() returned.
  void watch_topics(std::function<void(const Result<std::uint64_t>& purged)> on_shift) {
    on_topic_shift_ = std::move(on_shift);
  }

  /// Says `text` as the user and generates the answer. A turn that failed, or was stopped before
  /// its answer began, is taken back. Errors: those of Engine::chat_prompt() and
  /// Sequence::generate() and ZoneFlags::make_zones(), and invalid_argument when the conversation
  /// no longer fits the context.
  Result<Generation> say(const std::string& text, const GenerateOptions& options);

  /// Goes on where a saved conversation stopped; a name that is new starts one. What was lost of
  /// it is read again by the next say(). Errors: those of Engine::read_session() but not_found, and
  /// corrupt (the session is none of a conversation).
  Result<void> resume(const std::string& session);
  /// Saves the conversation under the name given to resume(). Errors: those of
  /// Engine::save_session().
  Result<void> save();

  /// Takes what got least attention out of memory, until it is needed. Returns how many bytes are
  /// free for others. Errors: those of Sequence::purge().
  Result<std::uint64_t> purge(const PurgeOptions& options);

  /// Forgets everything.
  void reset();

  std::size_t messages() const { return messages_.size(); }
  /// The conversation as the last say() read it, up to its answer, and how much of that had been
  /// read before.
  std::span<const TokenId> prompt() const { return prompt_; }
  std::size_t prompt_tokens_before() const { return prompt_tokens_before_; }

 private:
  void note_message(ChatMessage message);
  Result<Generation> answer(const GenerateOptions& options, bool begins_topic);
  Result<void> leave_topic(std::span<const TokenId> unread, const GenerateOptions& options);

  Engine& engine_;
  const ZoneFlags zones_;
  std::vector<ChatMessage> messages_;
  std::unique_ptr<Sequence> sequence_;  // null: nothing read yet
  std::string session_;
  std::vector<TokenId> saved_tokens_;  // of the session, to be read first
  std::vector<TokenId> prompt_;
  std::size_t prompt_tokens_before_ = 0;
  std::function<void(const Result<std::uint64_t>&)> on_topic_shift_;
  TopicShift topics_;
  std::uint32_t topic_begin_ = 0;  // its first token
};

}  // namespace headrace
