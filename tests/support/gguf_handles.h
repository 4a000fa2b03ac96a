// Owners of ggml's and gguf's C objects.
#pragma once

#include <memory>

#include "ggml.h"
#include "gguf.h"

namespace headrace::test {

struct GgufDeleter {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
struct GgmlDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using Gguf = std::unique_ptr<gguf_context, GgufDeleter>;
using Ggml = std::unique_ptr<ggml_context, GgmlDeleter>;

/// Room for the headers of `tensors` tensors, without their data.
inline Ggml new_tensor_headers(std::size_t tensors) {
  return Ggml(ggml_init(
      {.mem_size = ggml_tensor_overhead() * tensors, .mem_buffer = nullptr, .no_alloc = true}));
}

}  // namespace headrace::test
