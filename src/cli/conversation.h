// Conversation: turns of a chat over one growing Sequence, so that each turn reads only what is
// new.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/zone_flags.h"
#include "headrace/engine.h"

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

  /// Forgets everything.
  void reset();

  std::size_t messages() const { return messages_.size(); }

 private:
  Result<Generation> answer(const GenerateOptions& options);

  Engine& engine_;
  const ZoneFlags zones_;
  std::vector<ChatMessage> messages_;
  std::unique_ptr<Sequence> sequence_;  // null: nothing read yet
  std::string session_;
  std::vector<TokenId> saved_tokens_;  // of the session, to be read first
};

}  // namespace headrace
