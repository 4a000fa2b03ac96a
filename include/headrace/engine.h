// The public C++ interface: an Engine (a model and its KV cache) and Sequences (contexts that
// grow).
//
//   headrace::EngineOptions options;
//   options.model_path = "model.gguf";
//   options.kv.memory_bytes = 64 << 20;
//   auto engine = headrace::Engine::open(options);
//   auto sequence = (*engine)->new_sequence();
//   auto prompt = (*engine)->tokenize("Once upon a time", {});
//   auto answer = (*sequence)->generate(*prompt, {.max_tokens = 64});
//
// When memory runs out, whatever returns a Result gives out_of_budget. If that was in the middle of
// something, the engine refuses all later calls; one that is opened anew finds what was saved.
//
// Thread-safety: an Engine and its sequences belong to one thread at a time. Different engines are
// independent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/options.h"
#include "headrace/result.h"
#include "headrace/types.h"

namespace headrace {

/// Geometry and name of an opened model.
struct ModelInfo {
  std::string name;
  std::string architecture;
  std::uint64_t file_bytes = 0;
  std::uint64_t parameters = 0;
  std::uint32_t layers = 0;
  std::uint32_t embedding = 0;  ///< width of the hidden state
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t feed_forward = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t trained_context = 0;  ///< tokens
  std::uint32_t window = 0;           ///< tokens that layers with a window read; 0: none has one
  std::uint32_t window_layers = 0;    ///< layers with a window
  bool has_chat_template = false;
  std::vector<std::pair<std::string, std::uint64_t>>
      tensor_bytes_by_type;  ///< e.g. {"Q4_1", 66355200}

  /// Bytes of K and V of one token, all layers.
  std::uint64_t kv_bytes_per_token(KvType type) const {
    return std::uint64_t{layers} * kv_bytes_per_layer(type);
  }
  /// Bytes of K and V of a text: layers with a window keep no more than that.
  std::uint64_t kv_bytes(KvType type, std::uint64_t tokens) const {
    const std::uint64_t kept = tokens < window ? tokens : window;
    return kv_bytes_per_layer(type) * ((layers - window_layers) * tokens + window_layers * kept);
  }
  /// Bytes of K and V of one token in one layer.
  std::uint64_t kv_bytes_per_layer(KvType type) const {
    return std::uint64_t{kv_heads} * (key_bytes(type, head_dim) + value_bytes(type, head_dim));
  }
};

/// Reads the geometry of a GGUF file without loading weights.
/// Errors: not_found, io, corrupt (not a GGUF file, cut short), unsupported (an architecture we
/// cannot run).
Result<ModelInfo> inspect_model(const std::string& path);

/// What steps that read a part of the tokens left out, measured: against the keys and values that
/// they could have read.
struct CertifiedReading {
  /// The share of a query head's attention that went to tokens that were not read, on average over
  /// steps, layers and query heads, and the largest. A sample of recall may stand for it.
  double mass_not_read = 0;
  double mass_not_read_most = 0;
  /// How far what a layer's attention gave is from what it would have given over all tokens: the
  /// length of the difference relative to that of the latter, on average over steps and layers, and
  /// the largest.
  double error = 0;
  double error_most = 0;
};

/// What the KV cache of an engine did so far.
struct KvStats {
  std::uint64_t kv_bytes_needed = 0;  ///< KV of the longest sequence so far, everything in memory
  std::uint64_t kv_bytes_peak = 0;    ///< most bytes of pool + metadata + IO buffers held at once
                                      ///< under the limit in force
  std::uint64_t kv_bytes_limit = 0;   ///< the limit in force
  std::uint64_t tokens_reused = 0;    ///< taken over from other texts instead of read
  std::uint64_t pages_sealed = 0;
  std::uint64_t pages_written = 0;           ///< to the disk tier
  std::uint64_t pages_filled_from_host = 0;  ///< encoded in memory
  std::uint64_t pages_filled_from_disk = 0;
  /// Recomputed: the stored copy did not verify, or only the text had been kept.
  std::uint64_t pages_filled_by_replay = 0;
  /// How often, of how many tokens and in what time pages were computed again.
  std::uint64_t recomputations = 0;
  std::uint64_t recomputed_tokens = 0;
  double recompute_seconds = 0;
  std::uint64_t pages_damaged = 0;  ///< loads that failed verification
  std::uint64_t disk_bytes_peak = 0;
  std::uint64_t recall_choices = 0;  ///< one per step that read a part, layer and kv head, or
                                     ///< for all kv heads (recall_by_layer)
  double recall_tokens_read = 0;     ///< per choice, on average
  /// The share of attention that was not read, likewise, as estimated: a sample stands for it. Only
  /// recall knows it.
  std::optional<double> recall_mass_left_out = {};
  /// Groups of 8 tokens that recall read, all layers, and those of them that were not in memory.
  /// Only where not everything fits into memory.
  std::uint64_t recall_groups_read = 0;
  std::uint64_t recall_groups_loaded = 0;
  std::uint64_t recall_bytes_loaded = 0;  ///< group by group
  /// Those that were to be read and waited for a later step (AttentionOptions::recall_load_tokens),
  /// and the largest share of a layer's attention that was not read for that reason in one step.
  std::uint64_t recall_groups_deferred = 0;
  double recall_mass_deferred_most = 0;
  /// Where AttentionOptions::certify is set and steps read a part of the tokens.
  std::optional<CertifiedReading> certified = {};
};

/// The outcome of one generation.
struct Generation {
  std::string text;
  std::vector<TokenId> tokens;
  std::string finish_reason;         ///< "stop", "length" or "cancelled"
  std::uint32_t prompt_tokens = 0;   ///< tokens read in this call
  std::uint32_t reused_tokens = 0;   ///< those of them that another text had left in the cache
  std::uint32_t guessed_tokens = 0;  ///< by GenerateOptions::prompt_lookup_tokens
  std::uint32_t guesses_kept = 0;    ///< those of them that the model would have drawn
  double prefill_seconds = 0;
  double decode_seconds = 0;
  // Of single steps behind the first token: half of them, 90 % and 99 % took no longer. 0: none.
  double step_seconds_p50 = 0;
  double step_seconds_p90 = 0;
  double step_seconds_p99 = 0;
  double prefill_tokens_per_second() const {
    return prefill_seconds > 0 ? prompt_tokens / prefill_seconds : 0;
  }
  /// Steps after the first token, which prefill pays for.
  double decode_tokens_per_second() const {
    return decode_seconds > 0 && tokens.size() > 1
               ? static_cast<double>(tokens.size() - 1) / decode_seconds
               : 0;
  }
};

/// How text becomes tokens.
struct TokenizeOptions {
  bool add_special = true;     ///< begin-of-text, where the model wants it
  bool parse_special = false;  ///< read control-token text such as <|im_start|> as control tokens
};

/// A context that grows: its tokens and their keys and values. Owned by the caller; must not
/// outlive its Engine.
class Sequence {
 public:
  virtual ~Sequence() = default;

  /// The tokens that have been read. After generate() ended with "length" or was stopped by
  /// on_text, the last token drawn is not among them: nothing needed its keys and values yet. While
  /// on_text runs, those of the step under way are not among them either.
  virtual std::span<const TokenId> tokens() const = 0;

  /// Reads `tokens` into the cache. If `on_logits` is set it is called for each of them, in order;
  /// else only the last row's logits are computed. Errors: invalid_argument (empty, unknown token,
  /// longer than the context), out_of_budget, io, cancelled. After an error the sequence holds the
  /// tokens of the steps that completed.
  virtual Result<void> append(std::span<const TokenId> tokens, const ProgressCallback& on_progress,
                              const LogitsCallback& on_logits) = 0;

  /// Reads one token as generate() reads those that it draws, in the engine's attention mode:
  /// logits() follow. Errors: those of append().
  virtual Result<void> decode(TokenId token) = 0;

  /// Logits for the token after the last one read, [vocabulary]. Empty before the first append().
  virtual std::span<const float> logits() const = 0;

  /// Makes these tokens a permanent zone: from now on every step in recall, window and sparse
  /// attention reads them, besides the first and the newest tokens, and where recall keeps groups
  /// of tokens in memory they are the last to leave it. Zones are made of groups of 8 tokens (0 to
  /// 7, 8 to 15, ...), rounded outwards. May be called between any two steps, also for tokens that
  /// are yet to come; again for the same tokens it changes nothing. A fork has the zones of its
  /// original, a saved session has none: whoever goes on with it makes them anew. Exact attention
  /// reads everything, and layers with a window read that. Errors: invalid_argument (no tokens, or
  /// some behind the end of the context).
  virtual Result<void> keep(std::uint32_t first_token, std::uint32_t tokens) = 0;

  /// Takes what got least attention out of memory, between any two steps: of the keys and values
  /// that this sequence has there, the share `keep_ratio` stays. The others are demoted: written
  /// where EngineOptions::kv says, unless they are there already, and loaded again by a step that
  /// reads them. So nothing is lost, and answers are the same, bit for bit, in every mode but with
  /// AttentionOptions::recall_load_tokens. Always stays: the block under way, the first tokens
  /// (AttentionOptions::retain_first), permanent zones, the newest tokens that every step reads,
  /// layers with a window, and what other sequences use too. What got how much attention is known
  /// in recall and sparse, while no prompt is read; else the newest pages leave first. Pages leave
  /// as a whole. Returns how many bytes of memory are free for others. Errors: invalid_argument
  /// (the ratio; all keys and values have room in memory, or KvOptions::evicted is "recipe", so
  /// that there is no other place), out_of_budget, io; then what could not be written is still in
  /// memory.
  virtual Result<std::uint64_t> purge(const PurgeOptions& options) = 0;
  Result<std::uint64_t> purge(float keep_ratio) {
    return purge(PurgeOptions{.keep_ratio = keep_ratio});
  }

  /// Another sequence with the same text. Both share what is sealed; the copy costs one open block.
  /// Errors: out_of_budget.
  virtual Result<std::unique_ptr<Sequence>> fork() = 0;

  /// Reads `prompt`, then samples until the model ends, `max_tokens` or the end of the context.
  /// Errors: those of append(). A cancelled callback is no error: finish_reason says so.
  virtual Result<Generation> generate(std::span<const TokenId> prompt,
                                      const GenerateOptions& options) = 0;
};

/// What one sequence reads in a step that several share.
struct SequenceStep {
  Sequence* sequence = nullptr;
  std::span<const TokenId> tokens = {};
};

/// A text that was saved under a name.
struct SessionState {
  std::vector<TokenId> tokens;
  std::string note;    ///< whatever was given to save_session()
  std::string tenant;  ///< of the sequence that was saved
};

/// A model ready to run and the KV cache that its sequences share.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Opens a model. Errors: those of inspect_model(), and invalid_argument (context above the
  /// trained one, block size, thread count, kernels in HEADRACE_FORCE_ISA that cannot run here, a
  /// precision map of another model), out_of_budget (memory below what one step needs), io (the
  /// disk directory cannot be used).
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);

  virtual const ModelInfo& model() const = 0;
  /// Of the model file, 32 hexadecimal digits: what a precision map names its model by.
  virtual std::string model_digest() const = 0;
  virtual std::uint32_t context() const = 0;
  virtual KvStats kv_stats() const = 0;
  /// Name of the kernels in use: "avx512bf16", "avx512", "avx2", "neon_dotprod", "neon" or
  /// "scalar".
  virtual const char* instruction_set() const = 0;

  virtual Result<std::vector<TokenId>> tokenize(std::string_view text,
                                                const TokenizeOptions& options) const = 0;
  /// The bytes of one token. Not necessarily whole UTF-8 characters.
  virtual std::string token_bytes(TokenId token) const = 0;
  virtual bool is_end_of_generation(TokenId token) const = 0;
  /// Whether the token is none of text, such as <|im_start|>: it says where something begins or
  /// ends.
  virtual bool is_control(TokenId token) const = 0;

  /// The prompt that the model's chat template makes of `messages`, ready for the assistant's
  /// answer. Text inside messages never becomes control tokens. Errors: unsupported (no template),
  /// invalid_argument (template refused).
  virtual Result<std::vector<TokenId>> chat_prompt(std::span<const ChatMessage> messages) const = 0;

  /// A new, empty sequence. Errors: out_of_budget.
  Result<std::unique_ptr<Sequence>> new_sequence() { return new_sequence(SequenceOptions()); }
  virtual Result<std::unique_ptr<Sequence>> new_sequence(const SequenceOptions& options) = 0;

  /// A new KvOptions::memory_bytes (not 0), from now on: up, to no more than full contexts need, or
  /// down. Errors: out_of_budget (below what a step needs, or sequences hold what cannot leave
  /// memory), io; then the old limit stays.
  virtual Result<void> set_kv_memory(std::uint64_t bytes) = 0;
  /// A new KvOptions::disk_bytes, from now on: what no sequence and no session uses goes where it
  /// is lower. Errors: out_of_budget (what is in use does not fit), io; then the old limit stays.
  virtual Result<void> set_kv_disk(std::uint64_t bytes) = 0;

  /// Saves the text of `sequence` under a name: 1 to 64 letters, digits, '-' and '_'. When this
  /// returns, it survives a crash; until then the one saved before under this name does. `note` is
  /// the caller's. Errors: invalid_argument (the name; KvOptions::keep_disk is not set),
  /// out_of_budget, io.
  virtual Result<void> save_session(const std::string& name, Sequence& sequence,
                                    std::string_view note) = 0;

  /// What was saved under a name. Append its tokens to a new sequence of its tenant to go on: what
  /// is on disk is taken over, and what was lost is read again. Errors: invalid_argument,
  /// not_found, corrupt, and unsupported (it was saved with another model).
  virtual Result<SessionState> read_session(const std::string& name) = 0;

  /// Reads tokens into several sequences of this engine with one pass over the weights, which is
  /// what decoding is bound by. Each gets the logits() that append() would have given it, bit for
  /// bit. Errors: those of append(), and invalid_argument (a sequence named twice); nothing is read
  /// when the arguments are wrong, and the steps that completed stay when the world fails.
  virtual Result<void> append_together(std::span<const SequenceStep> steps) = 0;
};

}  // namespace headrace
