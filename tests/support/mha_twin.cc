#include "tests/support/mha_twin.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <string_view>
#include <vector>

#include "tests/support/gguf_handles.h"

namespace headrace::test {
namespace {

Result<std::uint32_t> read_u32(const gguf_context* gguf, const char* key) {
  const std::int64_t id = gguf_find_key(gguf, key);
  if (id < 0) return Error{ErrorCode::corrupt, std::string("the model has no ") + key};
  if (gguf_get_kv_type(gguf, id) != GGUF_TYPE_UINT32) {
    return Error{ErrorCode::unsupported, std::string(key) + " is not one number for all layers"};
  }
  return gguf_get_val_u32(gguf, id);
}

bool is_kv_projection(std::string_view name) {
  return name.find(".attn_k.") != std::string_view::npos ||
         name.find(".attn_v.") != std::string_view::npos;
}

/// Repeats each kv head's rows (of a matrix) or values (of a bias) for every query head of its
/// group.
std::vector<std::byte> repeat_heads(const ggml_tensor* tensor, std::uint32_t kv_heads,
                                    std::uint32_t group) {
  const std::size_t head_bytes = ggml_nbytes(tensor) / kv_heads;
  const auto* source = static_cast<const std::byte*>(tensor->data);
  std::vector<std::byte> result(ggml_nbytes(tensor) * group);
  for (std::size_t head = 0; head < std::size_t{kv_heads} * group; ++head) {
    std::memcpy(result.data() + head * head_bytes, source + head / group * head_bytes, head_bytes);
  }
  return result;
}

}  // namespace

Result<void> write_mha_twin(const std::string& path, const std::string& twin_path) {
  ggml_context* loaded = nullptr;
  const Gguf source(gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &loaded}));
  const Ggml tensors(loaded);
  if (!source || !tensors) return Error{ErrorCode::corrupt, path + " is not a GGUF file"};
  HEADRACE_TRY_ASSIGN(const std::uint32_t query_heads,
                      read_u32(source.get(), "llama.attention.head_count"));
  HEADRACE_TRY_ASSIGN(const std::uint32_t kv_heads,
                      read_u32(source.get(), "llama.attention.head_count_kv"));
  if (kv_heads == 0 || query_heads % kv_heads != 0) {
    return Error{ErrorCode::corrupt, "query heads are not a multiple of kv heads"};
  }

  const Gguf twin(gguf_init_empty());
  gguf_set_kv(twin.get(), source.get());
  gguf_set_val_u32(twin.get(), "llama.attention.head_count_kv", query_heads);
  const std::uint32_t group = query_heads / kv_heads;
  const std::int64_t tensor_count = gguf_get_n_tensors(source.get());
  const Ggml headers = new_tensor_headers(static_cast<std::size_t>(tensor_count));
  std::list<std::vector<std::byte>> repeated;  // a list: tensors point into it
  for (std::int64_t id = 0; id < tensor_count; ++id) {
    const char* name = gguf_get_tensor_name(source.get(), id);
    const ggml_tensor* tensor = ggml_get_tensor(tensors.get(), name);
    if (!is_kv_projection(name)) {
      gguf_add_tensor(twin.get(), tensor);
      continue;
    }
    const bool is_bias = ggml_n_dims(tensor) == 1;
    ggml_tensor* wide =
        is_bias
            ? ggml_new_tensor_1d(headers.get(), tensor->type, tensor->ne[0] * group)
            : ggml_new_tensor_2d(headers.get(), tensor->type, tensor->ne[0], tensor->ne[1] * group);
    ggml_set_name(wide, name);
    repeated.push_back(repeat_heads(tensor, kv_heads, group));
    wide->data = repeated.back().data();
    gguf_add_tensor(twin.get(), wide);
  }
  if (!gguf_write_to_file(twin.get(), twin_path.c_str(), false)) {
    return Error{ErrorCode::io, "cannot write " + twin_path};
  }
  return {};
}

}  // namespace headrace::test
