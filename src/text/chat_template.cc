#include "text/chat_template.h"

#include <chat.h>
#include <llama.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "text/control_text.h"
#include "text/llama_log.h"
#include "text/vocabulary.h"

namespace headrace {
namespace {

// The tokens that `parse_special` makes of text; llama.cpp's tokenizer tests the same two bits.
std::vector<std::string> control_texts_of(const llama_vocab* vocab) {
  std::vector<std::string> texts;
  for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const auto attributes = static_cast<unsigned>(llama_vocab_get_attr(vocab, token));
    if ((attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0) {
      texts.emplace_back(llama_vocab_get_text(vocab, token));
    }
  }
  return texts;
}

Error template_refused(const std::string& why) {
  std::string line = why.substr(0, why.find('\n'));
  return {ErrorCode::invalid_argument,
          "the model's chat template refused the conversation: " + line};
}

}  // namespace

struct ChatTemplate::State {
  State(std::vector<std::string> texts, bool add_bos_token)
      : control_text(std::move(texts)), add_bos(add_bos_token) {}
  common_chat_templates_ptr templates;  // null: could not be parsed, and `parse_error` says why
  std::string parse_error;
  ControlText control_text;
  bool add_bos;
  common_chat_templates_inputs inputs;  // without messages
};

std::unique_ptr<ChatTemplate> ChatTemplate::of_model(const llama_model* model) {
  LlamaLogCapture log;
  if (llama_model_chat_template(model, nullptr) == nullptr) return nullptr;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  auto state = std::make_unique<State>(control_texts_of(vocab), llama_vocab_get_add_bos(vocab));
  state->inputs.add_bos = state->add_bos;
  state->inputs.force_pure_content =
      true;  // no tools, no reasoning parser: only the text is wanted
  try {
    state->templates = common_chat_templates_init(model, "");
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    state->parse_error = error.what();
  }
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(state)));
}

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::vector<TokenId>> ChatTemplate::prompt(const Vocabulary& vocabulary,
                                                  std::span<const ChatMessage> messages) const {
  if (state_->templates == nullptr) {
    return Error{ErrorCode::unsupported, "the model's chat template cannot be read (" +
                                             state_->parse_error +
                                             "); give it plain text instead (--raw)"};
  }
  if (messages.empty())
    return Error{ErrorCode::invalid_argument, "a conversation needs at least one message"};

  LlamaLogCapture log;
  std::vector<std::string> hidden;
  common_chat_templates_inputs inputs = state_->inputs;
  for (const ChatMessage& message : messages) {
    // A role goes into the prompt as template text, so it must not come from outside.
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      return Error{ErrorCode::invalid_argument, "a message's role is \"" + message.role +
                                                    "\"; it must be system, user or assistant"};
    }
    common_chat_msg& rendered = inputs.messages.emplace_back();
    rendered.role = message.role;
    rendered.content = state_->control_text.hide(message.content, hidden);
  }

  std::string rendered;
  try {
    rendered = common_chat_templates_apply(state_->templates.get(), inputs).prompt;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return template_refused(error.what());
  }

  // Without hidden text this is one part: the same tokens as llama.cpp makes. The begin-of-text
  // token is added here and not by the tokenizer, which would add it (and, for some models, an end
  // token) to every part.
  std::vector<TokenId> tokens;
  for (const ControlText::Part& part : ControlText::split(rendered, hidden)) {
    HEADRACE_TRY_ASSIGN(
        const std::vector<TokenId> part_tokens,
        vocabulary.tokenize(part.text, {.add_special = false, .parse_special = !part.literal}));
    tokens.insert(tokens.end(), part_tokens.begin(), part_tokens.end());
  }
  const TokenId begin = llama_vocab_bos(vocabulary.vocab_handle());
  if (state_->add_bos && begin >= 0 && (tokens.empty() || tokens.front() != begin)) {
    tokens.insert(tokens.begin(), begin);
  }
  return tokens;
}

}  // namespace headrace
