// Options of an engine and of one generation. Every field names its default, its unit and what 0
// means.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/types.h"

namespace headrace {

/// Keys and values of some tokens that leave memory.
struct KvEviction {
  std::uint32_t layer = 0;
  std::uint32_t first_position = 0;
  std::span<const TokenId> tokens;  ///< valid during the call
  /// Of recall: their share of the attention, or what they stand for in a sample of it, summed over
  /// the steps and decayed.
  double mass = 0;
  /// "nobody uses them", "newest first", "least mass", "lent slot is needed" or "purge".
  const char* reason = "";
  /// Where they can be had from: "host", "disk" or "text" (computed again).
  const char* to = "";
};
/// Called by the thread that works with the engine, in the middle of it: must not call the engine.
using EvictionCallback = std::function<void(const KvEviction& eviction)>;

/// Where keys and values live and how much room they have.
struct KvOptions {
  KvType type = KvType::i16;
  /// How the pages of full blocks are encoded: raw, lossless, q8, k8v4, q4
  /// (docs/formats/codecs.md), or "map:" and the file of a precision map
  /// (docs/formats/precision_map.md). The lossy ones change answers, though not from one run to the
  /// next.
  std::string codec = "raw";
  /// Limit for KV pool + page metadata + IO buffers, in bytes. 0: what full contexts
  /// of all sequences need; the memory is touched only as it is used.
  std::uint64_t memory_bytes = 0;
  /// Directory for pages that do not fit. Empty: the system's temporary directory, used only when
  /// needed.
  std::string disk_directory = {};
  /// Reads and writes of the disk pass the system's cache by, where the file system can.
  bool disk_direct = false;
  /// How pages are kept on disk: "raw" or "lossless".
  std::string disk_codec = "raw";
  /// Percent of memory_bytes for pages that are kept encoded in memory, with `host_codec`: what
  /// does not fit goes to disk. Pages that would be no smaller (of type q8, unless `codec` gives
  /// them fewer bits) have that memory in the pool, and are read in place. 0 to 90.
  std::uint32_t host_percent = 0;
  /// "lossless", or "raw": then they are in the pool like the others, and read in place.
  std::string host_codec = "lossless";
  /// Which of the blocks that no text uses leave first: "lru", "fifo", "s3fifo", "lrfu", "cost" or
  /// "auto", which follows the one that would have served the texts so far best. Empty: "cost"
  /// where keep_disk is set, else "lru", which needs the least memory.
  std::string policy = {};
  /// What may follow a text that was found is loaded ahead into free memory: "off", "conservative",
  /// "aggressive" or "learned".
  std::string prefetch = "off";
  /// What becomes of pages that leave memory. "demote": a tier has them. "recipe": nothing but the
  /// text is kept, and what a step reads is computed again before it, so each sequence must fit
  /// into memory_bytes by itself, and the disk is not used.
  std::string evicted = "demote";
  /// Pages go to disk as soon as they are full, not when their room is needed.
  bool write_through = false;
  /// What is in `disk_directory` stays for the next process: texts that begin alike, and sessions.
  bool keep_disk = false;
  /// Limit for the files in `disk_directory`, in bytes. 0: what the file system has free.
  std::uint64_t disk_bytes = 0;
  /// Tokens of a block: the unit of sealing and of movement between tiers. A multiple of 16, 16 to
  /// 4096.
  std::uint32_t tokens_per_block = 256;
  /// Blocks of texts that have ended stay as long as there is room, and a text that begins alike
  /// takes them over instead of reading. Changes speed, never results.
  bool reuse = true;
};

/// What a step that draws a token reads. Prompts are read exactly in every mode.
enum class AttentionMode : std::uint8_t {
  exact,   ///< all tokens
  recall,  ///< the first and the newest ones, those that matter most, and a sample of the rest
  window,  ///< the first and the newest ones
  sparse,  ///< those, a sample of the rest, and what earlier steps gave most attention to
};

inline constexpr AttentionMode attention_modes[] = {AttentionMode::exact, AttentionMode::recall,
                                                    AttentionMode::window, AttentionMode::sparse};

/// The lower-case name of a mode, as the command line takes it.
constexpr const char* to_string(AttentionMode mode) {
  switch (mode) {
    case AttentionMode::exact:
      return "exact";
    case AttentionMode::recall:
      return "recall";
    case AttentionMode::window:
      return "window";
    case AttentionMode::sparse:
      return "sparse";
  }
  return "?";
}

/// How attention chooses what it reads. Only `mode` matters in AttentionMode::exact.
struct AttentionOptions {
  AttentionMode mode = AttentionMode::exact;
  /// Most tokens that a kv head reads of a layer in a step, the first and newest ones included. A
  /// text that is shorter is read exactly. Layers with a window read their window.
  std::uint32_t recall_tokens = 2048;
  /// Share of a kv head's attention, as estimated, at which a step reads no more. Above 0; 1: all
  /// of recall_tokens.
  float recall_mass = 1.0F;
  /// Share of a kv head's attention, as estimated, from which on 4 tokens are read. Of those that
  /// get less a sample is read in which each counts for as many as it stands for: about one for
  /// each such share that they get together. 0: any. Heads that look at few tokens read few, and
  /// those that look at many read more.
  float recall_share = 1e-3F;
  /// Neighbouring tokens that are chosen together: 4, 8 or 16.
  std::uint32_t recall_group = 4;
  /// One choice for all kv heads of a layer instead of one for each: fewer tokens are in use at
  /// once, so less memory holds them, and the answer is a little further from exact.
  bool recall_by_layer = false;
  /// Most tokens of a layer that a step of recall brings back from elsewhere, if some of the KV
  /// only is in memory: what matters less waits for the next step, unread. So no step takes long,
  /// and answers depend on the memory. The first step behind a prompt waits for all. 0: every step
  /// does.
  std::uint32_t recall_load_tokens = 0;
  /// Measures of every step that reads a part of the tokens what it left out, and how far its
  /// attention is from that of all tokens (KvStats::certified). Changes no answer; such a step
  /// takes longer than an exact one, which it does besides. Not together with recall_load_tokens.
  bool certify = false;
  /// Tokens at the beginning that are always read, in every mode.
  std::uint32_t recall_first = 16;
  std::uint32_t recall_newest = 128;  ///< tokens at the end that are always read, at least
  /// Tokens at the beginning that leave memory last where recall keeps groups of tokens there.
  /// Changes speed, never answers.
  std::uint32_t retain_first = 128;
  /// Newest tokens that AttentionMode::window reads, the step's own included.
  std::uint32_t window_tokens = 1008;
  /// In AttentionMode::window positions count what is read, without gaps: the first tokens seem to
  /// come right before the newest ones, as in StreamingLLM (Xiao et al. 2023). Contexts may be
  /// longer than what the model was trained for then; behind that each token is read by itself,
  /// those of prompts too, and reads its window. Without certify and permanent zones. false: all
  /// positions are the true ones.
  bool window_packed = false;
  /// Most tokens that AttentionMode::sparse reads, the first ones included. A text that is shorter
  /// is read exactly.
  std::uint32_t sparse_tokens = 1024;
  /// The part of them that is a sample, at even distances, of what lies between the first and the
  /// newest ones; and the part for those there that earlier steps gave most attention to. What is
  /// left of sparse_tokens are the newest.
  float sparse_sample = 0.2F;
  float sparse_heavy = 0.4F;
};

/// How much a token matters beyond the attention that it gets: 1 as much as that says, 2 twice as
/// much. `text`: its bytes, not necessarily whole UTF-8 characters. `is_control`: it is none of
/// text, such as <|im_start|>.
using TokenWeight = std::function<float(TokenId token, std::string_view text, bool is_control)>;
/// Makes one that is called for all tokens of one text, in order, each once. Both are called by the
/// thread that works with the engine, in the middle of it: they must not call the engine.
using NewTokenWeight = std::function<TokenWeight()>;

/// What an Engine is opened with.
struct EngineOptions {
  std::string model_path;  ///< a GGUF file
  /// Most tokens that a sequence may have. 0: what the model was trained for.
  std::uint32_t context = 0;
  /// Most sequences alive at once, 1 to 1024: bookkeeping is reserved for them.
  std::uint32_t sequences = 4;
  std::uint32_t threads = 0;  ///< threads that compute; 0: one per core
  /// Most prompt tokens of one forward pass. Changes speed, never results.
  std::uint32_t chunk_tokens = 512;
  KvOptions kv = {};
  AttentionOptions attention = {};
  /// Hears of all keys and values that leave memory. Null: nobody does.
  EvictionCallback on_eviction = {};
  /// Where recall keeps groups of tokens in memory, the attention that a group got counts as often
  /// as its largest weight says when room is needed or a purge comes. Changes speed, never answers,
  /// but with AttentionOptions::recall_load_tokens. Null: every token weighs 1.
  NewTokenWeight token_weights = {};
};

/// What a Sequence is started with.
struct SequenceOptions {
  /// Texts share keys and values with those of the same tenant only.
  std::string tenant = {};
  /// 0 to 3: what it leaves in the cache gives way only when nothing of a lower priority can.
  std::uint32_t priority = 0;
  /// Seconds after its end for which what it leaves may serve others. 0: no limit.
  std::uint32_t keep_seconds = 0;
};

/// What Sequence::purge() takes out of memory.
struct PurgeOptions {
  /// The share of the keys and values in memory that stays there: what got most attention. 0 to 1.
  float keep_ratio = 0.7F;
  std::uint32_t first_token = 0;  ///< where it begins
  std::uint32_t tokens = 0;       ///< from there on; 0: to the end
};

/// How the next token is chosen. The defaults are greedy: the most likely token, no randomness.
struct SamplingOptions {
  float temperature = 0.0F;     ///< 0: greedy. Larger: more varied
  std::int32_t top_k = 40;      ///< keep the k most likely; 0: all. Used only when temperature > 0
  float top_p = 0.95F;          ///< keep the smallest set with this probability; 1: all
  float min_p = 0.05F;          ///< drop tokens below this fraction of the likeliest; 0: none
  float repeat_penalty = 1.0F;  ///< > 1 discourages tokens of the last 64; 1: off
  std::uint32_t seed = 0xFFFFFFFFU;  ///< 0xFFFFFFFF: a new one each time
};

/// One message of a conversation. `role` is "system", "user" or "assistant".
struct ChatMessage {
  std::string role;
  std::string content;
};

/// Progress of reading a prompt: `done` of `total` tokens are in the cache. Return false to stop.
using ProgressCallback = std::function<bool(std::uint32_t done, std::uint32_t total)>;

/// Called with each generated piece of text, valid UTF-8. Return false to stop.
using TextCallback = std::function<bool(std::string_view text)>;

/// Called for each row whose logits were asked for: its position and the logits of the token after
/// it
/// ([vocabulary] floats, valid during the call). Return false to stop.
using LogitsCallback = std::function<bool(std::uint32_t position, const float* logits)>;

/// One generation.
struct GenerateOptions {
  std::uint32_t max_tokens = 128;  ///< 0: until the context is full or the model ends
  bool ignore_end = false;         ///< go on after an end-of-generation token
  SamplingOptions sampling = {};
  /// Most tokens that are guessed ahead from the text so far and checked in one step. 0: none.
  /// Changes speed, never the answer.
  std::uint32_t prompt_lookup_tokens = 0;
  ProgressCallback on_progress = {};  ///< optional
  TextCallback on_text = {};          ///< optional
};

}  // namespace headrace
