#include "model/architecture.h"

#include <algorithm>
#include <map>

#include "ggml.h"

namespace headrace {
namespace {

const Architecture* const architectures[] = {
    &llama_architecture, &qwen2_architecture,   &qwen3_architecture,  &gemma3_architecture,
    &phi3_architecture,  &granite_architecture, &smollm3_architecture};

Result<const Architecture*> find_architecture(const GgufFile& file) {
  HEADRACE_TRY_ASSIGN(const std::string name, file.require_string("general.architecture"));
  std::string known;
  for (const Architecture* architecture : architectures) {
    if (name == architecture->name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture->name);
  }
  return Error{ErrorCode::unsupported,
               "'" + file.path() + "' has the architecture '" + name +
                   "', which this version cannot run; it can run: " + known};
}

}  // namespace

Result<ModelShape> read_model_shape(const GgufFile& file) {
  HEADRACE_TRY_ASSIGN(const Architecture* architecture, find_architecture(file));
  HEADRACE_TRY_ASSIGN(const ModelShape shape, read_decoder_shape(file, *architecture));
  HEADRACE_TRY(check_shape(file, shape));
  return shape;
}

Result<Model> load_model(const GgufFile& file, std::uint32_t context) {
  HEADRACE_TRY_ASSIGN(const Architecture* architecture, find_architecture(file));
  HEADRACE_TRY_ASSIGN(const ModelShape shape, read_model_shape(file));
  return load_decoder(file, *architecture, shape, context);
}

ModelInfo describe_model(const GgufFile& file, const ModelShape& shape) {
  const auto text = [&](const char* key) {
    const auto value = file.get_string(key);
    return value.ok() && *value ? **value : std::string();
  };
  ModelInfo info;
  info.name = text("general.name");
  info.architecture = text("general.architecture");
  info.file_bytes = file.file_bytes();
  info.layers = shape.layers;
  info.embedding = shape.embedding;
  info.query_heads = shape.query_heads;
  info.kv_heads = shape.kv_heads;
  info.head_dim = shape.head_dim;
  info.feed_forward = shape.feed_forward;
  info.vocabulary = shape.vocabulary;
  info.trained_context = shape.trained_context;
  for (const std::uint32_t window : shape.windows) {
    if (window == 0) continue;
    info.window = window;
    ++info.window_layers;
  }
  info.has_chat_template = file.has_key("tokenizer.chat_template");
  std::map<std::string, std::uint64_t> by_type;
  for (const TensorInfo& tensor : file.tensors()) {
    info.parameters += tensor.width * tensor.rows;
    by_type[ggml_type_name(static_cast<ggml_type>(tensor.type))] += tensor.bytes.size();
  }
  info.tensor_bytes_by_type.assign(by_type.begin(), by_type.end());
  std::stable_sort(info.tensor_bytes_by_type.begin(), info.tensor_bytes_by_type.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return info;
}

}  // namespace headrace
