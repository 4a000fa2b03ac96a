// Architecture `llama`: Llama 1 to 3, Mistral, SmolLM2. Pre-norm decoder with grouped-query
// attention, rotary positions on neighbouring pairs, and a SwiGLU feed-forward (Touvron et al.
// 2023).
#include "model/architecture.h"

namespace headrace {
namespace {

Result<ModelShape> read_shape(const GgufFile& file) {
  const std::string prefix = "llama.";
  ModelShape shape;
  HEADRACE_TRY_ASSIGN(shape.layers, file.require_u32(prefix + "block_count"));
  HEADRACE_TRY_ASSIGN(shape.embedding, file.require_u32(prefix + "embedding_length"));
  HEADRACE_TRY_ASSIGN(shape.query_heads, file.require_u32(prefix + "attention.head_count"));
  HEADRACE_TRY_ASSIGN(shape.feed_forward, file.require_u32(prefix + "feed_forward_length"));
  HEADRACE_TRY_ASSIGN(shape.trained_context, file.require_u32(prefix + "context_length"));
  HEADRACE_TRY_ASSIGN(shape.norm_epsilon,
                      file.require_float(prefix + "attention.layer_norm_rms_epsilon"));

  shape.kv_heads = shape.query_heads;
  if (file.has_key(prefix + "attention.head_count_kv")) {
    HEADRACE_TRY_ASSIGN(shape.kv_heads, file.require_u32(prefix + "attention.head_count_kv"));
  }
  if (file.has_key(prefix + "attention.key_length")) {
    HEADRACE_TRY_ASSIGN(shape.head_dim, file.require_u32(prefix + "attention.key_length"));
  } else if (shape.query_heads > 0) {
    shape.head_dim = shape.embedding / shape.query_heads;
  }
  if (file.has_key(prefix + "rope.dimension_count")) {
    HEADRACE_TRY_ASSIGN(const std::uint32_t dims,
                        file.require_u32(prefix + "rope.dimension_count"));
    if (dims != shape.head_dim) {
      return Error{ErrorCode::unsupported, "'" + file.path() + "' rotates " + std::to_string(dims) +
                                               " of " + std::to_string(shape.head_dim) +
                                               " dims of a head, which cannot be run yet"};
    }
  }
  if (const TensorInfo* embedding = file.find_tensor("token_embd.weight")) {
    shape.vocabulary = static_cast<std::uint32_t>(embedding->rows);
  } else {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "' lacks the tensor 'token_embd.weight'; get the file again"};
  }
  HEADRACE_TRY_ASSIGN(const std::optional<std::uint64_t> experts,
                      file.get_unsigned(prefix + "expert_count"));
  if (experts.value_or(0) > 0) {
    return Error{ErrorCode::unsupported,
                 "'" + file.path() + "' is a mixture of experts, which cannot be run yet"};
  }
  return shape;
}

Result<LayerWeights> load_layer(const GgufFile& file, const ModelShape& shape,
                                std::uint32_t index) {
  const std::string block = "blk." + std::to_string(index) + ".";
  LayerWeights layer;
  HEADRACE_TRY_ASSIGN(layer.attention_norm,
                      bind_vector(file, block + "attn_norm.weight", shape.embedding, true));
  HEADRACE_TRY_ASSIGN(layer.query,
                      bind_linear(file, block + "attn_q", shape.embedding, shape.query_width()));
  HEADRACE_TRY_ASSIGN(layer.key,
                      bind_linear(file, block + "attn_k", shape.embedding, shape.kv_width()));
  HEADRACE_TRY_ASSIGN(layer.value,
                      bind_linear(file, block + "attn_v", shape.embedding, shape.kv_width()));
  HEADRACE_TRY_ASSIGN(layer.attention_output, bind_linear(file, block + "attn_output",
                                                          shape.query_width(), shape.embedding));
  HEADRACE_TRY_ASSIGN(layer.feed_forward_norm,
                      bind_vector(file, block + "ffn_norm.weight", shape.embedding, true));
  HEADRACE_TRY_ASSIGN(layer.gate,
                      bind_linear(file, block + "ffn_gate", shape.embedding, shape.feed_forward));
  HEADRACE_TRY_ASSIGN(layer.up,
                      bind_linear(file, block + "ffn_up", shape.embedding, shape.feed_forward));
  HEADRACE_TRY_ASSIGN(layer.down,
                      bind_linear(file, block + "ffn_down", shape.feed_forward, shape.embedding));
  return layer;
}

Result<Model> load(const GgufFile& file, const ModelShape& shape) {
  Model model;
  model.architecture = "llama";
  model.shape = shape;
  HEADRACE_TRY_ASSIGN(model.rope, read_rope(file, "llama.", shape.head_dim, shape.trained_context));
  HEADRACE_TRY_ASSIGN(model.embedding,
                      bind_matrix(file, "token_embd.weight", shape.embedding, shape.vocabulary));
  HEADRACE_TRY_ASSIGN(model.output_norm,
                      bind_vector(file, "output_norm.weight", shape.embedding, true));
  const bool tied = file.find_tensor("output.weight") == nullptr;
  HEADRACE_TRY_ASSIGN(model.output, bind_matrix(file, tied ? "token_embd.weight" : "output.weight",
                                                shape.embedding, shape.vocabulary));
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    HEADRACE_TRY_ASSIGN(LayerWeights layer, load_layer(file, shape, i));
    model.layers.push_back(layer);
  }
  return model;
}

}  // namespace

const Architecture llama_architecture = {"llama", read_shape, load};

}  // namespace headrace
