// Runtime: the engine behind include/headrace/engine.h: a model, the KV cache and the loop that
// joins them.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "base/no_memory.h"
#include "cache/sequence_cache.h"
#include "env/env.h"
#include "headrace/engine.h"
#include "model/forward.h"
#include "runtime/hidden_codec.h"
#include "runtime/model_file.h"
#include "text/vocabulary.h"

namespace headrace {

class Runtime final : public Engine {
 public:
  /// Engine::open() in a given world.
  static Result<std::unique_ptr<Engine>> open(Env& env, const EngineOptions& options);

  const ModelInfo& model() const override { return info_; }
  std::string model_digest() const override { return to_hex(store_->options().model); }
  std::uint32_t context() const override { return context_; }
  KvStats kv_stats() const override;
  const char* instruction_set() const override { return kernel::kernels().name; }
  Result<std::vector<TokenId>> tokenize(std::string_view text,
                                        const TokenizeOptions& options) const override {
    return or_no_memory(ErrorCode::out_of_budget,
                        [&] { return vocabulary_->tokenize(text, options); });
  }
  std::string token_bytes(TokenId token) const override { return vocabulary_->token_bytes(token); }
  bool is_end_of_generation(TokenId token) const override {
    return vocabulary_->is_end_of_generation(token);
  }
  bool is_control(TokenId token) const override { return vocabulary_->is_control(token); }
  Result<std::vector<TokenId>> chat_prompt(std::span<const ChatMessage> messages) const override {
    return or_no_memory(ErrorCode::out_of_budget,
                        [&] { return vocabulary_->chat_prompt(messages); });
  }
  using Engine::new_sequence;
  Result<std::unique_ptr<Sequence>> new_sequence(const SequenceOptions& options) override;
  Result<void> set_kv_memory(std::uint64_t bytes) override {
    return guarded([&] { return store_->set_memory_bytes(bytes); });
  }
  Result<void> set_kv_disk(std::uint64_t bytes) override {
    return guarded([&] { return store_->set_disk_bytes(bytes); });
  }
  Result<void> save_session(const std::string& name, Sequence& sequence,
                            std::string_view note) override {
    return guarded([&] { return save(name, sequence, note); });
  }
  Result<SessionState> read_session(const std::string& name) override;
  Result<void> append_together(std::span<const SequenceStep> steps) override {
    return guarded([&] { return read_together(steps); });
  }

  /// Carries out what a caller asks for. If memory runs out in it nobody knows how far it came, so
  /// all later calls are refused.
  template <typename Work>
  std::invoke_result_t<Work> guarded(Work&& work) {
    try {
      if (store_->is_broken_off()) return broken_off();
      return std::forward<Work>(work)();
    } catch (const std::bad_alloc&) {
      store_->break_off();
      return no_memory(ErrorCode::out_of_budget);
    }
  }

  /// One step of one sequence: `tokens` (at most rows_possible()) join it. Rows from
  /// `first_logits_row` on give logits. A page that does not verify is replayed, and the step
  /// repeated.
  Result<void> step(SequenceCache& sequence, std::span<const TokenId> tokens,
                    std::uint32_t first_logits_row, const RowLogits& on_logits);
  /// A step of tokens of which all but the first are guesses: those after the row for which
  /// `on_logits` returned false are dropped.
  Result<void> step_guessing(SequenceCache& sequence, std::span<const TokenId> tokens,
                             const RowLogits& on_logits);

  /// One sequence's part of a step.
  struct StepPart {
    SequenceCache* sequence = nullptr;
    std::span<const TokenId> tokens;
    std::uint32_t first_logits_row = 0;
    /// Keep only the rows up to the one for which `on_logits` returned false. Not for steps of
    /// several sequences.
    bool drops_rows = false;
  };
  /// One step of several sequences, which share one pass over the weights. Returns how many of
  /// `parts`, from the first on, took part: at least one, and fewer than all when there are not
  /// enough slots for all at once.
  Result<std::size_t> step(std::span<const StepPart> parts, const BatchLogits& on_logits);

  /// Takes over what the cache has of the first of `tokens`, all but the last: its logits are
  /// wanted. Returns how many that are.
  static std::uint32_t take_cached(SequenceCache& sequence, std::span<const TokenId> tokens) {
    return tokens.size() < 2 ? 0 : sequence.take_cached(tokens.first(tokens.size() - 1));
  }

  /// Most rows of the next step of `sequence`, up to `wanted`.
  std::uint32_t rows_possible(const SequenceCache& sequence, std::size_t wanted) const;

  /// Whether keys and values have a place besides memory.
  bool can_demote() const { return !store_->holds_everything(); }
  bool reads_a_part() const { return store_->options().reads_a_part(); }
  /// Whether contexts may be longer than the model was trained for.
  bool packs_positions() const { return headrace::packs_positions(store_->options().attention); }
  Env& env() const { return env_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  explicit Runtime(Env& env) : env_(env) {}
  Result<void> step_alone(const StepPart& part, const RowLogits& on_logits);
  Result<void> load(const EngineOptions& options);
  static Error broken_off();
  Result<void> save(const std::string& name, Sequence& sequence, std::string_view note);
  Result<void> read_together(std::span<const SequenceStep> steps);
  /// Of KvOptions::codec.
  Result<const Codec*> open_codec(const std::string& name, const Digest128& model);
  Result<const Codec*> open_map_codec(const std::string& path, const Digest128& model);
  Result<const Codec*> open_hidden_codec(HiddenType type);
  /// Reserves and starts as many of `parts` as there are slots for. Errors: of the first one.
  Result<std::size_t> begin(std::span<const StepPart> parts);
  /// Brings a lost page back, and before it those that it needs: at most `rebuilds_left` together.
  Result<void> replay(SequenceCache& sequence, const PagePlace& lost, std::uint32_t& rebuilds_left);
  void note_compute_cost(const Segment& segment, std::chrono::nanoseconds start);
  Result<void> rebuild(SequenceCache& sequence, const PagePlace& lost,
                       std::uint32_t blocks_there = 0);
  /// Computes all pages of a sequence that are nowhere, where only the text is kept.
  Result<void> restore(SequenceCache& sequence);
  void note_recomputed(std::size_t tokens, std::chrono::nanoseconds start);

  Env& env_;
  std::unique_ptr<Parallel> parallel_;
  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Vocabulary> vocabulary_;
  std::unique_ptr<KvProjector> projector_;  // of the store's codec, if hidden states are kept
  std::unique_ptr<Codec> codec_;  // the store's, if it is of a precision map or of hidden states
  std::unique_ptr<PageStore> store_;
  std::unique_ptr<ForwardPass> forward_;
  ModelInfo info_;
  std::uint32_t context_ = 0;
  std::uint32_t chunk_tokens_ = 0;
};

}  // namespace headrace
