#include "text/vocabulary.h"

#include <llama.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/no_memory.h"
#include "text/chat_template.h"
#include "text/llama_log.h"

namespace headrace {
namespace {

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

Error load_error(const std::string& model_path, const std::string& reason) {
  const auto says = [&](const char* words) { return reason.find(words) != std::string::npos; };
  if (says("bad_alloc")) return no_memory(ErrorCode::out_of_budget);
  ErrorCode code = ErrorCode::corrupt;
  if (says("unknown") || says("unsupported")) code = ErrorCode::unsupported;
  if (says("No such file")) code = ErrorCode::not_found;
  std::string message = "cannot read the vocabulary of " + model_path + ": " +
                        (reason.empty() ? "not a GGUF model file" : reason);
  if (code == ErrorCode::corrupt)
    message += "; it may be cut short or of another kind: fetch it again";
  return {code, message};
}

}  // namespace

struct Vocabulary::State {
  std::unique_ptr<llama_model, FreeModel> model;
  const llama_vocab* vocab = nullptr;
  std::unique_ptr<ChatTemplate> chat_template;  // null: the model has none
};

Result<std::unique_ptr<Vocabulary>> Vocabulary::load(const std::string& model_path) {
  LlamaLogCapture log;
  static std::once_flag once;
  std::call_once(once, llama_backend_init);

  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  auto state = std::make_unique<State>();
  std::string exception_text;
  try {
    state->model.reset(llama_model_load_from_file(model_path.c_str(), params));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    exception_text = error.what();
  }
  if (state->model == nullptr) {
    return load_error(model_path, exception_text.empty() ? log.first_error() : exception_text);
  }
  state->vocab = llama_model_get_vocab(state->model.get());
  if (llama_vocab_n_tokens(state->vocab) <= 0) {
    return Error{ErrorCode::unsupported, model_path + " has no vocabulary"};
  }
  state->chat_template = ChatTemplate::of_model(state->model.get());
  return std::unique_ptr<Vocabulary>(new Vocabulary(std::move(state)));
}

Vocabulary::Vocabulary(std::unique_ptr<State> state) : state_(std::move(state)) {}
Vocabulary::~Vocabulary() = default;

std::uint32_t Vocabulary::size() const {
  return static_cast<std::uint32_t>(llama_vocab_n_tokens(state_->vocab));
}

bool Vocabulary::is_end_of_generation(TokenId token) const {
  return llama_vocab_is_eog(state_->vocab, token);
}

bool Vocabulary::is_control(TokenId token) const {
  return llama_vocab_is_control(state_->vocab, token);
}

std::string Vocabulary::token_bytes(TokenId token) const {
  HEADRACE_CHECK(token >= 0 && token < llama_vocab_n_tokens(state_->vocab), "the token exists");
  // lstrip 0 and special true: the bytes of all tokens of a text, joined, are that text, control
  // tokens included.
  std::string bytes(32, '\0');
  const auto render = [&] {
    return llama_token_to_piece(state_->vocab, token, bytes.data(),
                                static_cast<std::int32_t>(bytes.size()), 0, true);
  };
  std::int32_t length = render();
  if (length < 0) {
    bytes.resize(static_cast<std::size_t>(-length));
    length = render();
  }
  bytes.resize(static_cast<std::size_t>(std::max(length, 0)));
  return bytes;
}

Result<std::vector<TokenId>> Vocabulary::tokenize(std::string_view text,
                                                  const TokenizeOptions& options) const {
  constexpr std::size_t bytes_max = std::numeric_limits<std::int32_t>::max();
  const Error too_long = {ErrorCode::invalid_argument, "the text is longer than 2 GiB; split it"};
  if (text.size() > bytes_max) return too_long;
  const auto text_bytes = static_cast<std::int32_t>(text.size());
  // Most texts have less than a token per two bytes; the second try is for the others.
  std::vector<TokenId> tokens(text.size() / 2 + 16);
  const auto tokenize_into = [&] {
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): its length goes with it
    return llama_tokenize(state_->vocab, text.data(), text_bytes, tokens.data(),
                          static_cast<std::int32_t>(tokens.size()), options.add_special,
                          options.parse_special);
  };
  try {
    std::int32_t count = tokenize_into();
    if (count == std::numeric_limits<std::int32_t>::min()) return too_long;
    if (count < 0) {
      tokens.resize(static_cast<std::size_t>(-count));
      count = tokenize_into();
    }
    HEADRACE_CHECK(count >= 0, "llama_tokenize asked for this many tokens");
    tokens.resize(static_cast<std::size_t>(count));
    tokens.shrink_to_fit();
    return tokens;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return Error{ErrorCode::invalid_argument,
                 std::string("the text cannot be tokenised: ") + error.what()};
  }
}

bool Vocabulary::has_chat_template() const { return state_->chat_template != nullptr; }

Result<std::vector<TokenId>> Vocabulary::chat_prompt(std::span<const ChatMessage> messages) const {
  if (state_->chat_template == nullptr) {
    return Error{ErrorCode::unsupported,
                 "this model has no chat template; give it plain text instead (--raw)"};
  }
  return state_->chat_template->prompt(*this, messages);
}

const llama_vocab* Vocabulary::vocab_handle() const { return state_->vocab; }

}  // namespace headrace
