// Vocabulary: text <-> tokens and chat templates, from llama.cpp's library (design.md section 8: we
// write no tokenizer and no template engine).
//
// Thread-safety: const methods may be called from any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/engine.h"

struct llama_vocab;

namespace headrace {

class Vocabulary {
 public:
  /// Loads the vocabulary and the chat template of a GGUF file, no weights. Errors:
  /// not_found, corrupt, unsupported.
  static Result<std::unique_ptr<Vocabulary>> load(const std::string& model_path);
  ~Vocabulary();
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::uint32_t size() const;
  bool is_end_of_generation(TokenId token) const;
  bool is_control(TokenId token) const;
  /// Control tokens too: the bytes of a text's tokens, joined, are the text.
  std::string token_bytes(TokenId token) const;
  /// Errors: invalid_argument (text longer than 2 GiB).
  Result<std::vector<TokenId>> tokenize(std::string_view text,
                                        const TokenizeOptions& options) const;
  bool has_chat_template() const;
  /// See Engine::chat_prompt().
  Result<std::vector<TokenId>> chat_prompt(std::span<const ChatMessage> messages) const;

  const llama_vocab* vocab_handle() const;

 private:
  struct State;
  explicit Vocabulary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
