// Reads what all architectures have: keys of the shape, tensors of the layers.
#include <algorithm>
#include <set>

#include "model/architecture.h"

namespace headrace {
namespace {

Error unsupported(const GgufFile& file, const std::string& what) {
  return {ErrorCode::unsupported, "'" + file.path() + "' " + what};
}

/// A number that a file may give once or for each layer. Here all layers are alike.
Result<std::uint32_t> require_layer_number(const GgufFile& file, const std::string& key) {
  if (!file.is_array(key)) return file.require_u32(key);
  HEADRACE_TRY_ASSIGN(const std::vector<std::uint64_t> values, file.get_unsigned_array(key));
  if (values.empty() || values[0] > 0xFFFFFFFFU) {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "': the values of '" + key + "' are not 32-bit numbers"};
  }
  if (std::count(values.begin(), values.end(), values[0]) !=
      static_cast<std::ptrdiff_t>(values.size())) {
    return unsupported(file, "has layers that differ in '" + key + "', which cannot be run yet");
  }
  return static_cast<std::uint32_t>(values[0]);
}

Result<void> read_heads(const GgufFile& file, const std::string& prefix,
                        const Architecture& architecture, ModelShape& shape) {
  HEADRACE_TRY_ASSIGN(shape.query_heads,
                      require_layer_number(file, prefix + "attention.head_count"));
  shape.kv_heads = shape.query_heads;
  if (file.has_key(prefix + "attention.head_count_kv")) {
    HEADRACE_TRY_ASSIGN(shape.kv_heads,
                        require_layer_number(file, prefix + "attention.head_count_kv"));
  }
  if (file.has_key(prefix + "attention.key_length")) {
    HEADRACE_TRY_ASSIGN(shape.head_dim, file.require_u32(prefix + "attention.key_length"));
  } else if (shape.query_heads > 0) {
    shape.head_dim = shape.embedding / shape.query_heads;
  }
  if (file.has_key(prefix + "attention.value_length")) {
    HEADRACE_TRY_ASSIGN(const std::uint32_t value_dim,
                        file.require_u32(prefix + "attention.value_length"));
    if (value_dim != shape.head_dim) {
      return unsupported(file, "has keys of " + std::to_string(shape.head_dim) + " and values of " +
                                   std::to_string(value_dim) + " dims, which cannot be run yet");
    }
  }
  shape.rope_pairs = architecture.rope_pairs;
  shape.rotated_dims = shape.head_dim;
  if (file.has_key(prefix + "rope.dimension_count")) {
    HEADRACE_TRY_ASSIGN(shape.rotated_dims, file.require_u32(prefix + "rope.dimension_count"));
  }
  const bool is_whole = shape.rotated_dims == shape.head_dim;
  const bool is_part = architecture.partial_rotation && shape.rotated_dims < shape.head_dim &&
                       shape.rotated_dims % 2 == 0;
  if (!is_whole && !is_part) {
    return unsupported(file, "rotates " + std::to_string(shape.rotated_dims) + " of " +
                                 std::to_string(shape.head_dim) +
                                 " dims of a head, which cannot be run yet");
  }
  return {};
}

/// Binds the tensors of one file and remembers which ones.
class DecoderLoader {
 public:
  DecoderLoader(const GgufFile& file, const Architecture& architecture, const ModelShape& shape)
      : file_(file), architecture_(architecture), shape_(shape) {}

  Result<void> load(Model& model) {
    const std::uint32_t width = shape_.embedding;
    HEADRACE_TRY_ASSIGN(const Linear embedding, linear("token_embd", width, shape_.vocabulary));
    model.embedding = embedding.weights;
    HEADRACE_TRY_ASSIGN(model.output_norm, norm("output_norm", width));
    model.output = {model.embedding, nullptr};
    if (file_.find_tensor("output.weight") != nullptr) {
      HEADRACE_TRY_ASSIGN(model.output, linear("output", width, shape_.vocabulary));
    }
    for (std::uint32_t i = 0; i < shape_.layers; ++i) {
      block_ = "blk." + std::to_string(i) + ".";
      HEADRACE_TRY_ASSIGN(LayerWeights layer, load_layer());
      model.layers.push_back(layer);
    }
    return check_that_all_are_bound();
  }

 private:
  Result<LayerWeights> load_layer() {
    const std::uint32_t width = shape_.embedding;
    LayerWeights layer;
    HEADRACE_TRY_ASSIGN(layer.attention_norm, norm(block_ + "attn_norm", width));
    HEADRACE_TRY(load_query_key_value(layer));
    if (architecture_.head_norms) {
      HEADRACE_TRY_ASSIGN(layer.query_norm, norm(block_ + "attn_q_norm", shape_.head_dim));
      HEADRACE_TRY_ASSIGN(layer.key_norm, norm(block_ + "attn_k_norm", shape_.head_dim));
    }
    HEADRACE_TRY_ASSIGN(layer.attention_output,
                        linear(block_ + "attn_output", shape_.query_width(), width));
    HEADRACE_TRY_ASSIGN(layer.feed_forward_norm, norm(block_ + "ffn_norm", width));
    HEADRACE_TRY(load_gate_up(layer));
    HEADRACE_TRY_ASSIGN(layer.down, linear(block_ + "ffn_down", shape_.feed_forward, width));
    if (architecture_.post_norms) {
      HEADRACE_TRY_ASSIGN(layer.attention_post_norm, norm(block_ + "post_attention_norm", width));
      HEADRACE_TRY_ASSIGN(layer.feed_forward_post_norm, norm(block_ + "post_ffw_norm", width));
    }
    return layer;
  }

  /// Three tensors, or one that holds their rows one after the other.
  Result<void> load_query_key_value(LayerWeights& layer) {
    const std::uint32_t width = shape_.embedding;
    const std::uint32_t query = shape_.query_width();
    const std::uint32_t kv = shape_.kv_width();
    if (file_.find_tensor(block_ + "attn_qkv.weight") != nullptr) {
      HEADRACE_TRY_ASSIGN(const Linear all, linear(block_ + "attn_qkv", width, query + 2 * kv));
      layer.query = rows_of(all, 0, query);
      layer.key = rows_of(all, query, kv);
      layer.value = rows_of(all, query + kv, kv);
      return {};
    }
    HEADRACE_TRY_ASSIGN(layer.query, linear(block_ + "attn_q", width, query));
    HEADRACE_TRY_ASSIGN(layer.key, linear(block_ + "attn_k", width, kv));
    HEADRACE_TRY_ASSIGN(layer.value, linear(block_ + "attn_v", width, kv));
    return {};
  }

  Result<void> load_gate_up(LayerWeights& layer) {
    const std::uint32_t width = shape_.embedding;
    const std::uint32_t inner = shape_.feed_forward;
    if (architecture_.fused_gate_up) {
      HEADRACE_TRY_ASSIGN(const Linear both, linear(block_ + "ffn_up", width, 2 * inner));
      layer.gate = rows_of(both, 0, inner);
      layer.up = rows_of(both, inner, inner);
      return {};
    }
    HEADRACE_TRY_ASSIGN(layer.gate, linear(block_ + "ffn_gate", width, inner));
    HEADRACE_TRY_ASSIGN(layer.up, linear(block_ + "ffn_up", width, inner));
    return {};
  }

  Result<Linear> linear(const std::string& name, std::uint64_t width, std::uint64_t outputs) {
    bound_.insert({name + ".weight", name + ".bias"});
    return bind_linear(file_, name, width, outputs);
  }
  Result<const float*> norm(const std::string& name, std::uint64_t width) {
    bound_.insert(name + ".weight");
    return bind_vector(file_, name + ".weight", width, true);
  }

  /// A tensor that nothing reads may well be one that the model needs.
  Result<void> check_that_all_are_bound() const {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (bound_.contains(tensor.name) || tensor.name.starts_with("rope_f")) continue;
      return unsupported(file_, "has the tensor '" + tensor.name + "', which no model of the " +
                                    "architecture '" + architecture_.name +
                                    "' that can be run has");
    }
    return {};
  }

  const GgufFile& file_;
  const Architecture& architecture_;
  const ModelShape& shape_;
  std::string block_;
  std::set<std::string, std::less<>> bound_;
};

}  // namespace

Result<ModelShape> read_decoder_shape(const GgufFile& file, const Architecture& architecture) {
  const std::string prefix = std::string(architecture.name) + ".";
  ModelShape shape;
  HEADRACE_TRY_ASSIGN(shape.layers, file.require_u32(prefix + "block_count"));
  HEADRACE_TRY_ASSIGN(shape.embedding, file.require_u32(prefix + "embedding_length"));
  HEADRACE_TRY(read_heads(file, prefix, architecture, shape));
  HEADRACE_TRY_ASSIGN(shape.feed_forward,
                      require_layer_number(file, prefix + "feed_forward_length"));
  HEADRACE_TRY_ASSIGN(shape.trained_context, file.require_u32(prefix + "context_length"));
  HEADRACE_TRY_ASSIGN(shape.norm_epsilon,
                      file.require_float(prefix + "attention.layer_norm_rms_epsilon"));
  shape.activation = architecture.activation;
  if (const TensorInfo* embedding = file.find_tensor("token_embd.weight")) {
    shape.vocabulary = static_cast<std::uint32_t>(embedding->rows);
  } else {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "' lacks the tensor 'token_embd.weight'; get the file again"};
  }
  HEADRACE_TRY_ASSIGN(const std::optional<std::uint64_t> experts,
                      file.get_unsigned(prefix + "expert_count"));
  if (experts.value_or(0) > 0)
    return unsupported(file, "is a mixture of experts, which cannot be run yet");
  if (architecture.read_more != nullptr) HEADRACE_TRY(architecture.read_more(file, shape));
  return shape;
}

Result<Model> load_decoder(const GgufFile& file, const Architecture& architecture,
                           const ModelShape& shape, std::uint32_t context) {
  const std::string prefix = std::string(architecture.name) + ".";
  Model model;
  model.architecture = architecture.name;
  model.shape = shape;
  HEADRACE_TRY_ASSIGN(model.rope, read_rope(file, prefix, shape.rotated_dims, shape.trained_context,
                                            context == 0 ? shape.trained_context : context));
  if (!shape.windows.empty()) {
    HEADRACE_TRY_ASSIGN(model.window_rope, read_window_rope(file, prefix, shape.rotated_dims));
  }
  DecoderLoader loader(file, architecture, shape);
  HEADRACE_TRY(loader.load(model));
  return model;
}

}  // namespace headrace
