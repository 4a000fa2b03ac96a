// FakeEngine: an Engine for tests of the commands. Tokens are bytes and a few more; answers are
// scripted.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "headrace/engine.h"

namespace headrace {

class FakeEngine final : public Engine {
 public:
  static constexpr TokenId start_token = 256;   // "<start>"
  static constexpr TokenId end_token = 257;     // "<end>", ends a generation
  static constexpr TokenId merged_token = 258;  // "ab", which the tokenizer prefers over 'a', 'b'
  static constexpr std::uint32_t vocabulary = 259;

  FakeEngine() {
    model_info.name = "Fake";
    model_info.vocabulary = vocabulary;
    model_info.trained_context = 1000;
    model_info.has_chat_template = true;
  }

  ModelInfo model_info;
  std::string digest = std::string(32, 'a');
  KvStats stats;
  std::uint32_t context_tokens = 1000;
  bool adds_begin_token = false;
  std::deque<std::vector<TokenId>> answers;  // of the coming generations
  std::function<void(std::vector<float>& row, std::span<const TokenId> tokens)> fill_logits;
  std::function<void()> before_each_token;
  Result<void> fail_reading;  // what reading tokens says
  Result<void> fail_saving;   // what save_session() says
  std::map<std::string, SessionState> sessions;
  std::function<void(const std::map<std::string, SessionState>&)> on_save;
  int sequences_made = 0;
  std::function<void()> on_decode;
  std::vector<std::vector<TokenId>> reads;  // prompts of append() and generate(), in order
  std::vector<std::pair<std::uint32_t, std::uint32_t>> zones;  // of keep(), in order
  std::vector<PurgeOptions> purges;                            // of purge(), in order
  Result<void> fail_purging;                                   // what purge() says

  const ModelInfo& model() const override { return model_info; }
  std::string model_digest() const override { return digest; }
  std::uint32_t context() const override { return context_tokens; }
  KvStats kv_stats() const override { return stats; }
  const char* instruction_set() const override { return "scalar"; }

  Result<std::vector<TokenId>> tokenize(std::string_view text,
                                        const TokenizeOptions& options) const override {
    std::vector<TokenId> tokens;
    if (options.add_special && adds_begin_token) tokens.push_back(start_token);
    add_text(tokens, text);
    return tokens;
  }
  std::string token_bytes(TokenId token) const override {
    if (token == start_token) return "<start>";
    if (token == end_token) return "<end>";
    if (token == merged_token) return "ab";
    return std::string(1, static_cast<char>(token));
  }
  bool is_end_of_generation(TokenId token) const override { return token == end_token; }
  bool is_control(TokenId token) const override {
    return token == start_token || token == end_token;
  }

  Result<std::vector<TokenId>> chat_prompt(std::span<const ChatMessage> messages) const override {
    std::vector<TokenId> tokens;
    for (const ChatMessage& message : messages) {
      tokens.push_back(start_token);
      add_text(tokens, message.role + "\n" + message.content);
      tokens.push_back(end_token);
    }
    tokens.push_back(start_token);
    add_text(tokens, "assistant\n");
    return tokens;
  }

  Result<void> set_kv_memory(std::uint64_t) override { return {}; }
  Result<void> set_kv_disk(std::uint64_t) override { return {}; }
  Result<void> save_session(const std::string& name, Sequence& sequence,
                            std::string_view note) override {
    HEADRACE_TRY(fail_saving);
    sessions[name] = {{sequence.tokens().begin(), sequence.tokens().end()}, std::string(note), ""};
    if (on_save) on_save(sessions);
    return {};
  }
  Result<SessionState> read_session(const std::string& name) override {
    const auto session = sessions.find(name);
    if (session == sessions.end()) return Error{ErrorCode::not_found, "there is no such session"};
    return session->second;
  }
  using Engine::new_sequence;
  Result<std::unique_ptr<Sequence>> new_sequence(const SequenceOptions& options) override;
  Result<void> append_together(std::span<const SequenceStep> steps) override {
    for (const SequenceStep& step : steps) {
      HEADRACE_TRY(step.sequence->append(step.tokens, nullptr, nullptr));
    }
    return {};
  }

 private:
  static void add_text(std::vector<TokenId>& tokens, std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool merges = text.substr(i, 2) == "ab";
      tokens.push_back(merges ? merged_token : static_cast<unsigned char>(text[i]));
      if (merges) ++i;
    }
  }
};

class FakeSequence final : public Sequence {
 public:
  explicit FakeSequence(FakeEngine& engine) : engine_(engine), row_(FakeEngine::vocabulary) {}

  std::span<const TokenId> tokens() const override { return tokens_; }
  std::span<const float> logits() const override { return row_; }

  Result<void> append(std::span<const TokenId> tokens, const ProgressCallback& on_progress,
                      const LogitsCallback& on_logits) override {
    engine_.reads.emplace_back(tokens.begin(), tokens.end());
    std::uint32_t done = 0;
    for (const TokenId token : tokens) {
      if (on_progress && !on_progress(done++, static_cast<std::uint32_t>(tokens.size()))) {
        return Error{ErrorCode::cancelled, "stopped"};
      }
      HEADRACE_TRY(engine_.fail_reading);
      tokens_.push_back(token);
      if (engine_.fill_logits) engine_.fill_logits(row_, tokens_);
      if (on_logits && !on_logits(static_cast<std::uint32_t>(tokens_.size() - 1), row_.data())) {
        return Error{ErrorCode::cancelled, "stopped"};
      }
    }
    return {};
  }

  Result<void> keep(std::uint32_t first_token, std::uint32_t tokens) override {
    engine_.zones.emplace_back(first_token, tokens);
    return {};
  }

  using Sequence::purge;
  Result<std::uint64_t> purge(const PurgeOptions& options) override {
    engine_.purges.push_back(options);
    HEADRACE_TRY(engine_.fail_purging);
    return std::uint64_t{2} << 20;
  }

  Result<void> decode(TokenId token) override {
    if (engine_.on_decode) engine_.on_decode();
    return append({&token, 1}, nullptr, nullptr);
  }

  Result<std::unique_ptr<Sequence>> fork() override {
    auto copy = std::make_unique<FakeSequence>(engine_);
    copy->tokens_ = tokens_;
    copy->row_ = row_;
    return std::unique_ptr<Sequence>(std::move(copy));
  }

  // Like the real one, leaves the last token of an answer unread.
  Result<Generation> generate(std::span<const TokenId> prompt,
                              const GenerateOptions& options) override {
    Generation generation;
    const Result<void> read = append(prompt, options.on_progress, nullptr);
    if (!read.ok() && read.error().code != ErrorCode::cancelled) return read.error();
    generation.prompt_tokens = static_cast<std::uint32_t>(prompt.size());
    generation.prefill_seconds = 2;
    generation.finish_reason = read.ok() ? "stop" : "cancelled";
    std::vector<TokenId> answer;
    if (read.ok() && !engine_.answers.empty()) {
      answer = engine_.answers.front();
      engine_.answers.pop_front();
    }
    for (const TokenId token : answer) {
      if (options.max_tokens != 0 && generation.tokens.size() == options.max_tokens) {
        generation.finish_reason = "length";
        break;
      }
      if (engine_.before_each_token) engine_.before_each_token();
      if (!generation.tokens.empty()) tokens_.push_back(generation.tokens.back());
      generation.tokens.push_back(token);
      generation.decode_seconds += 0.5;
      generation.text += engine_.token_bytes(token);
      if (options.on_text && !options.on_text(engine_.token_bytes(token))) {
        generation.finish_reason = "cancelled";
        break;
      }
    }
    return generation;
  }

 private:
  FakeEngine& engine_;
  std::vector<TokenId> tokens_;
  std::vector<float> row_;
};

inline Result<std::unique_ptr<Sequence>> FakeEngine::new_sequence(const SequenceOptions&) {
  ++sequences_made;
  return std::unique_ptr<Sequence>(std::make_unique<FakeSequence>(*this));
}

}  // namespace headrace
