// Tiny random GGUF models of every architecture, so that every geometry, weight type and rope
// variant can be tested in milliseconds. The vocabulary is a real byte-level one: any text can be
// tokenised, and every byte is a token.
//
// The weights are scaled so that logits spread like those of a trained model (a clear favourite at
// most positions); otherwise rounding alone would decide which token comes first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ggml.h"
#include "headrace/result.h"
#include "headrace/types.h"

namespace headrace::test {

/// Where the rotation of keys and queries takes its angles from.
enum class RopeVariant {
  plain,                   ///< the base alone
  linear,                  ///< positions divided by a factor
  yarn,                    ///< interpolation by frequency, with a scale on the magnitude
  factors,                 ///< a tensor `rope_freqs.weight`, as Llama 3 has
  long_and_short_factors,  ///< one tensor for each, as Phi 3 has
};

struct TinyModelOptions {
  std::string architecture = "llama";
  std::uint32_t layers = 2;
  std::uint32_t embedding = 64;
  std::uint32_t query_heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim = 16;
  std::uint32_t feed_forward = 96;
  std::uint32_t vocabulary = 288;  ///< at least tiny_model_smallest_vocabulary
  std::uint32_t trained_context = 4096;
  ggml_type weight_type = GGML_TYPE_F32;  ///< of all matrices; norms and biases are F32
  bool tied_output = true;
  bool biases = false;             ///< on q, k, v and o; qwen2 has those of q, k and v in any case
  std::uint32_t window = 0;        ///< gemma3: tokens that some layers read; 0: none
  std::uint32_t window_step = 0;   ///< gemma3: every so many layers one has none; 0: unsaid
  float logit_cap = 0.0F;          ///< gemma3; 0: none
  std::uint32_t rotated_dims = 0;  ///< of a head; 0: all
  float rope_base = 10000.0F;
  RopeVariant rope = RopeVariant::plain;
  float rope_factor = 4.0F;                    ///< linear, yarn
  std::uint32_t rope_original_context = 1024;  ///< yarn, long_and_short_factors
  float rope_attention_factor = 1.0F;          ///< yarn, long_and_short_factors
  bool chat_template = false;
  std::uint64_t seed = 1;
};

/// 256 bytes, <|endoftext|>, <|im_start|> and <|im_end|>.
inline constexpr std::uint32_t tiny_model_smallest_vocabulary = 259;
inline constexpr TokenId tiny_model_end_token = 256;

/// Geometry whose rows suit `type`: rows of a multiple of its block size.
TinyModelOptions tiny_model_options(ggml_type type);

/// Every architecture that can be run.
std::vector<std::string> tiny_model_architectures();
/// A model of that architecture with all that it has, in a geometry whose rows suit `type`.
TinyModelOptions tiny_model_options(const std::string& architecture, ggml_type type);

/// Writes the model to `path`. Errors: invalid_argument (rows that the weight type cannot hold),
/// io.
Result<void> write_tiny_model(const std::string& path, const TinyModelOptions& options);

/// Weight types that a model may come in and a test should cover.
std::vector<ggml_type> tiny_model_weight_types();

/// `count` random tokens that are neither control tokens nor outside the smallest vocabulary.
std::vector<TokenId> random_tokens(std::size_t count, std::uint64_t seed);

}  // namespace headrace::test
