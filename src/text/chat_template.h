// ChatTemplate: the model's own chat template, rendered by llama-common and turned into tokens.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "headrace/engine.h"

struct llama_model;

namespace headrace {

class Vocabulary;

class ChatTemplate {
 public:
  /// Null if the model has none. A template that cannot be parsed is reported by prompt().
  static std::unique_ptr<ChatTemplate> of_model(const llama_model* model);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  /// See Engine::chat_prompt().
  Result<std::vector<TokenId>> prompt(const Vocabulary& vocabulary,
                                      std::span<const ChatMessage> messages) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
