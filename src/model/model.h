// Model: a transformer's geometry and weights, ready for the forward pass. Weights stay in the
// mapped file.
//
// Adding an architecture touches three places: a file such as llama.cc that describes it, the list
// in architecture.cc, and the table of docs/architecture.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headrace/engine.h"
#include "headrace/result.h"
#include "kernel/matmul.h"
#include "model/gguf_file.h"

namespace headrace {

/// How positions turn heads. Frequencies are final: scaling of the file is applied.
struct RopeSpec {
  std::vector<double> frequencies;  ///< radians per position of pair i, [rotated dims / 2]
  float magnitude = 1.0F;           ///< factor on rotated values (YaRN)
};

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

  std::uint32_t query_width() const { return query_heads * head_dim; }
  std::uint32_t kv_width() const { return kv_heads * head_dim; }
};

/// A matrix and, where the file has one, a bias [outputs].
struct Linear {
  kernel::WeightMatrix weights;
  const float* bias = nullptr;
};

struct LayerWeights {
  const float* attention_norm = nullptr;     ///< [embedding]
  Linear query;                              ///< [query_width, embedding]
  Linear key;                                ///< [kv_width, embedding]
  Linear value;                              ///< [kv_width, embedding]
  Linear attention_output;                   ///< [embedding, query_width]
  const float* feed_forward_norm = nullptr;  ///< [embedding]
  Linear gate;                               ///< [feed_forward, embedding]
  Linear up;                                 ///< [feed_forward, embedding]
  Linear down;                               ///< [embedding, feed_forward]
};

/// Points into a GgufFile, which must outlive it. Immutable.
struct Model {
  std::string architecture;
  std::string name;
  ModelShape shape;
  RopeSpec rope;
  kernel::WeightMatrix embedding;  ///< [vocabulary, embedding], one row per token
  std::vector<LayerWeights> layers;
  const float* output_norm = nullptr;
  kernel::WeightMatrix output;  ///< [vocabulary, embedding]; the embedding itself when tied
};

/// Geometry only: what inspect and budgets need. Errors: corrupt, unsupported.
Result<ModelShape> read_model_shape(const GgufFile& file);

/// Binds all weights. Errors: corrupt (a tensor is missing or has another shape: names it),
/// unsupported.
Result<Model> load_model(const GgufFile& file);

/// Name, sizes and weight types, for people. `shape` is that of the same file.
ModelInfo describe_model(const GgufFile& file, const ModelShape& shape);

}  // namespace headrace
