// RuntimeSequence: a Sequence of the public interface over a SequenceCache.
#pragma once

#include <memory>
#include <vector>

#include "headrace/engine.h"
#include "runtime/runtime.h"

namespace headrace {

class RuntimeSequence final : public Sequence {
 public:
  RuntimeSequence(Runtime& runtime, std::unique_ptr<SequenceCache> cache)
      : runtime_(runtime), cache_(std::move(cache)) {}

  std::span<const TokenId> tokens() const override { return cache_->tokens(); }
  Result<void> append(std::span<const TokenId> tokens, const ProgressCallback& on_progress,
                      const LogitsCallback& on_logits) override {
    return runtime_.guarded([&] { return read(tokens, on_progress, on_logits); });
  }
  Result<void> decode(TokenId token) override {
    return runtime_.guarded([&] { return read_decoding(token); });
  }
  std::span<const float> logits() const override { return logits_; }
  Result<void> keep(std::uint32_t first_token, std::uint32_t tokens) override {
    return runtime_.guarded([&] { return make_zone(first_token, tokens); });
  }
  using Sequence::purge;
  Result<std::uint64_t> purge(const PurgeOptions& options) override {
    return runtime_.guarded([&] { return demote(options); });
  }
  Result<std::unique_ptr<Sequence>> fork() override;
  Result<Generation> generate(std::span<const TokenId> prompt,
                              const GenerateOptions& options) override {
    return runtime_.guarded([&] { return answer(prompt, options); });
  }

  /// What append() would refuse before reading anything.
  Result<void> check(std::span<const TokenId> tokens) const;
  const Runtime& runtime() const { return runtime_; }
  SequenceCache& cache() { return *cache_; }
  void set_logits(const float* logits) {
    logits_.assign(logits, logits + runtime_.model().vocabulary);
  }

 private:
  Result<void> make_zone(std::uint32_t first_token, std::uint32_t tokens);
  Result<std::uint64_t> demote(const PurgeOptions& options);
  Result<void> read_decoding(TokenId token);
  Result<void> step_decoding(std::span<const TokenId> tokens, const RowLogits& on_row);
  Result<void> read(std::span<const TokenId> tokens, const ProgressCallback& on_progress,
                    const LogitsCallback& on_logits);
  Result<Generation> answer(std::span<const TokenId> prompt, const GenerateOptions& options);
  /// Guesses that the next step has room for, beside the token before them.
  std::size_t guesses_possible(const GenerateOptions& options, const Generation& generation) const;

  Runtime& runtime_;
  std::unique_ptr<SequenceCache> cache_;
  std::vector<float> logits_;
};

}  // namespace headrace
