// Model: a transformer's geometry and weights, ready for the forward pass. Weights stay in the
// mapped file.
//
// All architectures are one graph, that of Llama, with parts that a model may have or not: each of
// them is a field below, and a model without it pays nothing and keeps its bits. Adding an
// architecture touches three places: a file such as qwen3.cc that describes it, the list in
// architecture.cc, and the tiny model in tests/support (docs/architecture.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "headrace/result.h"
#include "kernel/matmul.h"
#include "model/gguf_file.h"

namespace headrace {

/// Which dims of a head turn together.
enum class RopePairs : std::uint8_t {
  neighbours,  ///< 2i and 2i + 1
  halves,      ///< i and i + rotated dims / 2
};

/// How positions turn heads. Frequencies are final: scaling of the file is applied.
struct RopeSpec {
  std::vector<double> frequencies;  ///< radians per position of pair i, [rotated dims / 2]
  float magnitude = 1.0F;           ///< factor on rotated values (YaRN)
};

/// The function on the gate of the feed-forward.
enum class Activation : std::uint8_t { silu, gelu };

/// Geometry that the forward pass needs.
struct ModelShape {
  std::uint32_t layers = 0;
  std::uint32_t embedding = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t feed_forward = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t trained_context = 0;
  float norm_epsilon = 0.0F;

  RopePairs rope_pairs = RopePairs::neighbours;
  std::uint32_t rotated_dims = 0;    ///< of a head, its first ones
  std::uint32_t unrotated_step = 0;  ///< every so many layers one is not rotated; 0: all are
  Activation activation = Activation::silu;
  float embedding_scale = 1.0F;
  double attention_scale = 0.0;  ///< of scores; 0: 1 / sqrt(head_dim)
  float residual_scale = 1.0F;   ///< of what attention and feed-forward add
  float logit_scale = 1.0F;
  float logit_cap = 0.0F;              ///< logits become cap * tanh(logit / cap); 0: they do not
  std::vector<std::uint32_t> windows;  ///< [layers]; empty: no layer has one

  std::uint32_t query_width() const { return query_heads * head_dim; }
  std::uint32_t kv_width() const { return kv_heads * head_dim; }
  /// A row of that layer reads this many tokens, itself among them; 0: all before it.
  std::uint32_t window(std::uint32_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool is_rotated(std::uint32_t layer) const {
    return unrotated_step == 0 || (layer + 1) % unrotated_step != 0;
  }
};

/// A matrix and, where the file has one, a bias [outputs].
struct Linear {
  kernel::WeightMatrix weights;
  const float* bias = nullptr;
};

struct LayerWeights {
  const float* attention_norm = nullptr;          ///< [embedding]
  Linear query;                                   ///< [query_width, embedding]
  Linear key;                                     ///< [kv_width, embedding]
  Linear value;                                   ///< [kv_width, embedding]
  const float* query_norm = nullptr;              ///< [head_dim], of each head before its rotation
  const float* key_norm = nullptr;                ///< [head_dim]
  Linear attention_output;                        ///< [embedding, query_width]
  const float* attention_post_norm = nullptr;     ///< [embedding], of what attention adds
  const float* feed_forward_norm = nullptr;       ///< [embedding]
  Linear gate;                                    ///< [feed_forward, embedding]
  Linear up;                                      ///< [feed_forward, embedding]
  Linear down;                                    ///< [embedding, feed_forward]
  const float* feed_forward_post_norm = nullptr;  ///< [embedding], of what feed-forward adds
};

/// Points into a GgufFile, which must outlive it. Immutable.
struct Model {
  std::string architecture;
  std::string name;
  ModelShape shape;
  RopeSpec rope;
  RopeSpec window_rope;            ///< of layers with a window
  kernel::WeightMatrix embedding;  ///< [vocabulary, embedding], one row per token
  std::vector<LayerWeights> layers;
  const float* output_norm = nullptr;
  Linear output;  ///< [vocabulary, embedding]; the embedding itself when tied
};

/// Geometry only: what inspect and budgets need. Errors: corrupt, unsupported.
Result<ModelShape> read_model_shape(const GgufFile& file);

/// Binds all weights for contexts of `context` tokens (0: the trained one), on which the rotation
/// of some models depends. Errors: corrupt (a tensor is missing or has another shape: names it),
/// unsupported.
Result<Model> load_model(const GgufFile& file, std::uint32_t context = 0);

/// Name, sizes and weight types, for people. `shape` is that of the same file.
ModelInfo describe_model(const GgufFile& file, const ModelShape& shape);

}  // namespace headrace
