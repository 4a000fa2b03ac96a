// Helpers that find tensors and check what they find.
#include <cstring>

#include "ggml.h"
#include "model/architecture.h"

namespace headrace {
namespace {

void copy_f32(const void* row, float* out, std::int64_t width) {
  std::memcpy(out, row, static_cast<std::size_t>(width) * sizeof(float));
}

kernel::WeightFormat format_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
      return kernel::WeightFormat::q4_0;
    case GGML_TYPE_Q4_1:
      return kernel::WeightFormat::q4_1;
    case GGML_TYPE_Q5_0:
      return kernel::WeightFormat::q5_0;
    case GGML_TYPE_Q5_1:
      return kernel::WeightFormat::q5_1;
    case GGML_TYPE_Q8_0:
      return kernel::WeightFormat::q8_0;
    case GGML_TYPE_IQ4_NL:
      return kernel::WeightFormat::iq4_nl;
    case GGML_TYPE_Q4_K:
      return kernel::WeightFormat::q4_k;
    case GGML_TYPE_Q5_K:
      return kernel::WeightFormat::q5_k;
    case GGML_TYPE_Q6_K:
      return kernel::WeightFormat::q6_k;
    case GGML_TYPE_F32:
      return kernel::WeightFormat::f32;
    case GGML_TYPE_F16:
      return kernel::WeightFormat::f16;
    case GGML_TYPE_BF16:
      return kernel::WeightFormat::bf16;
    default:
      return kernel::WeightFormat::other;
  }
}

std::string shape_text(std::uint64_t width, std::uint64_t rows) {
  return std::to_string(width) + " x " + std::to_string(rows);
}

Result<const TensorInfo*> find_shaped(const GgufFile& file, const std::string& name,
                                      std::uint64_t width, std::uint64_t rows) {
  const TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr) {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "' lacks the tensor '" + name + "'; get the file again"};
  }
  if (tensor->width != width || tensor->rows != rows) {
    return Error{ErrorCode::corrupt, "'" + file.path() + "': the tensor '" + name + "' is " +
                                         shape_text(tensor->width, tensor->rows) +
                                         ", but its metadata promise " + shape_text(width, rows)};
  }
  return tensor;
}

}  // namespace

Result<kernel::WeightMatrix> bind_matrix(const GgufFile& file, const std::string& name,
                                         std::uint64_t width, std::uint64_t outputs) {
  HEADRACE_TRY_ASSIGN(const TensorInfo* tensor, find_shaped(file, name, width, outputs));
  const auto type = static_cast<ggml_type>(tensor->type);
  kernel::WeightMatrix matrix;
  matrix.rows.format = format_of(type);
  matrix.rows.data = tensor->bytes.data();
  matrix.rows.row_bytes = tensor->bytes.size() / outputs;
  matrix.rows.width = static_cast<std::uint32_t>(width);
  matrix.outputs = static_cast<std::uint32_t>(outputs);
  matrix.to_float = type == GGML_TYPE_F32 ? copy_f32 : ggml_get_type_traits(type)->to_float;
  if (matrix.to_float == nullptr) {
    return Error{ErrorCode::unsupported, "'" + file.path() + "': weights of type " +
                                             ggml_type_name(type) + " (tensor '" + name +
                                             "') cannot be read"};
  }
  return matrix;
}

Result<const float*> bind_vector(const GgufFile& file, const std::string& name, std::uint64_t width,
                                 bool required) {
  if (!required && file.find_tensor(name) == nullptr) return static_cast<const float*>(nullptr);
  HEADRACE_TRY_ASSIGN(const TensorInfo* tensor, find_shaped(file, name, width, 1));
  if (tensor->type != GGML_TYPE_F32) {
    return Error{ErrorCode::unsupported,
                 "'" + file.path() + "': the tensor '" + name + "' is not F32"};
  }
  return reinterpret_cast<const float*>(tensor->bytes.data());
}

Result<Linear> bind_linear(const GgufFile& file, const std::string& name, std::uint64_t width,
                           std::uint64_t outputs) {
  Linear linear;
  HEADRACE_TRY_ASSIGN(linear.weights, bind_matrix(file, name + ".weight", width, outputs));
  HEADRACE_TRY_ASSIGN(linear.bias, bind_vector(file, name + ".bias", outputs, false));
  return linear;
}

Linear rows_of(const Linear& linear, std::uint32_t first, std::uint32_t outputs) {
  Linear part = linear;
  part.weights.rows.data += first * linear.weights.rows.row_bytes;
  part.weights.outputs = outputs;
  if (part.bias != nullptr) part.bias += first;
  return part;
}

Result<void> check_shape(const GgufFile& file, const ModelShape& shape) {
  const auto unsupported = [&](const std::string& what) {
    return Error{ErrorCode::unsupported, "'" + file.path() + "': " + what};
  };
  if (shape.layers == 0 || shape.embedding == 0 || shape.query_heads == 0 || shape.kv_heads == 0 ||
      shape.head_dim == 0 || shape.feed_forward == 0 || shape.vocabulary == 0 ||
      shape.trained_context == 0) {
    return Error{ErrorCode::corrupt, "'" + file.path() + "': a size in its metadata is 0"};
  }
  if (shape.layers > 4096 || shape.query_heads > 65536 || shape.head_dim > 4096) {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "': a size in its metadata is beyond reason"};
  }
  if (shape.query_heads % shape.kv_heads != 0) {
    return unsupported(std::to_string(shape.query_heads) + " query heads cannot share " +
                       std::to_string(shape.kv_heads) + " kv heads evenly");
  }
  if (shape.head_dim % 16 != 0)
    return unsupported("heads of " + std::to_string(shape.head_dim) + " are not a multiple of 16");
  if (shape.embedding % 16 != 0 || shape.feed_forward % 16 != 0) {
    return unsupported("widths of " + std::to_string(shape.embedding) + " and " +
                       std::to_string(shape.feed_forward) + " are not multiples of 16");
  }
  return {};
}

}  // namespace headrace
