#include "text/llama_log.h"

#include <llama.h>
#include <log.h>

#include <mutex>

#include "base/no_memory.h"

namespace headrace {
namespace {

thread_local std::string* captured_errors = nullptr;
thread_local bool in_error_line =
    false;  // a line may come in several calls; the later ones have level CONT

void on_log(ggml_log_level level, const char* text, void* /*unused*/) {
  if (level != GGML_LOG_LEVEL_CONT) in_error_line = level == GGML_LOG_LEVEL_ERROR;
  if (!in_error_line || captured_errors == nullptr) return;
  static_cast<void>(has_memory_for([&] { captured_errors->append(text); }));
}

void take_over_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_log, nullptr);
    common_log_set_verbosity_thold(
        -1);  // llama-common has a log of its own, which prints to stderr
  });
}

}  // namespace

LlamaLogCapture::LlamaLogCapture() : previous_(captured_errors) {
  constexpr std::size_t line_bytes = 256;
  errors_.reserve(line_bytes);  // so that want of memory can be said
  take_over_log();
  captured_errors = &errors_;
}

LlamaLogCapture::~LlamaLogCapture() { captured_errors = previous_; }

std::string LlamaLogCapture::first_error() const {
  std::string line = errors_.substr(0, errors_.find('\n'));
  // "llama_model_load: error loading model: why" -> "why"
  for (const char* prefix : {"error loading model: ", "error loading model vocabulary: "}) {
    const std::size_t at = line.find(prefix);
    if (at != std::string::npos) line.erase(0, at + std::char_traits<char>::length(prefix));
  }
  const std::size_t colon = line.find(": ");
  if (colon != std::string::npos && line.find(' ') > colon) line.erase(0, colon + 2);
  return line;
}

}  // namespace headrace
