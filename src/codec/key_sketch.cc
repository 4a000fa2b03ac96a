#include "codec/key_sketch.h"

#include "kernel/kernels.h"

namespace headrace {

std::uint64_t key_sketch_bytes(const PageShape& shape) {
  return shape.kv_heads * kernel::key_sketch_bytes(shape.tokens, shape.head_dim);
}

std::size_t key_sketch_scratch_floats(const PageShape& shape) {
  return std::size_t{3} * shape.head_dim * kernel::lanes;
}

void make_key_sketch(const PageShape& shape, const std::byte* page, float* scratch,
                     std::byte* out) {
  // Kernels only read the page; PageHead also serves writers.
  auto* const bytes = const_cast<std::byte*>(page);
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    kernel::kernels().sketch_keys({bytes + shape.k_offset(head), bytes + shape.v_offset(head),
                                   shape.type, shape.tokens, shape.head_dim},
                                  scratch, out);
    out += kernel::key_sketch_bytes(shape.tokens, shape.head_dim);
  }
}

}  // namespace headrace
