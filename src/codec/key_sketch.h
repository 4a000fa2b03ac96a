// Key sketches of a page, for all its kv heads (kernel/sketch-inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "page/shape.h"

namespace headrace {

/// Bytes of the sketches of one page.
std::uint64_t key_sketch_bytes(const PageShape& shape);
/// Floats that make_key_sketch() needs to work with.
std::size_t key_sketch_scratch_floats(const PageShape& shape);
/// `page` is full, in the layout of page/shape.h; `out` has key_sketch_bytes().
void make_key_sketch(const PageShape& shape, const std::byte* page, float* scratch, std::byte* out);

}  // namespace headrace
