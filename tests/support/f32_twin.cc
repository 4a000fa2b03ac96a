#include "tests/support/f32_twin.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "tests/support/gguf_handles.h"

namespace headrace::test {

Result<void> write_f32_twin(const std::string& path, const std::string& twin_path) {
  ggml_context* loaded = nullptr;
  const Gguf source(gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &loaded}));
  const Ggml tensors(loaded);
  if (!source || !tensors) return Error{ErrorCode::corrupt, path + " is not a GGUF file"};

  const Gguf twin(gguf_init_empty());
  gguf_set_kv(twin.get(), source.get());
  const std::int64_t tensor_count = gguf_get_n_tensors(source.get());
  const Ggml headers = new_tensor_headers(static_cast<std::size_t>(tensor_count));
  std::list<std::vector<float>> values;  // a list: tensors point into it
  for (std::int64_t id = 0; id < tensor_count; ++id) {
    const char* name = gguf_get_tensor_name(source.get(), id);
    const ggml_tensor* tensor = ggml_get_tensor(tensors.get(), name);
    if (tensor->type == GGML_TYPE_F32) {
      gguf_add_tensor(twin.get(), tensor);
      continue;
    }
    const std::int64_t count = ggml_nelements(tensor);
    values.emplace_back(static_cast<std::size_t>(count));
    ggml_get_type_traits(tensor->type)->to_float(tensor->data, values.back().data(), count);
    ggml_tensor* wide =
        ggml_new_tensor(headers.get(), GGML_TYPE_F32, ggml_n_dims(tensor), tensor->ne);
    ggml_set_name(wide, name);
    wide->data = values.back().data();
    gguf_add_tensor(twin.get(), wide);
  }
  if (!gguf_write_to_file(twin.get(), twin_path.c_str(), false)) {
    return Error{ErrorCode::io, "cannot write " + twin_path};
  }
  return {};
}

}  // namespace headrace::test
