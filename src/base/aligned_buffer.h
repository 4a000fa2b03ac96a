// AlignedBuffer: page-aligned memory for the pool and for scratch.
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "headrace/result.h"

namespace headrace {

/// Owns anonymous memory that starts on a page boundary and is zero. The system provides each page
/// at its first touch, so a large buffer that is used in part costs only that part. Move-only; a
/// moved-from or default one is empty.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  /// 0 bytes give an empty buffer. Errors: out_of_budget when the system has no room for it.
  static Result<AlignedBuffer> allocate(std::size_t bytes);

  /// Gives whole memory pages of a part back to the system; they are zero at their next touch.
  void discard(std::size_t offset, std::size_t bytes);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  MutableBytes span() { return {data_, size_}; }
  Bytes span() const { return {data_, size_}; }

 private:
  AlignedBuffer(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Divides a buffer into parts on boundaries of 64 bytes: counts while there is no memory yet,
/// hands out when there is.
struct Carver {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;

  template <typename T>
  void take(T*& part, std::size_t count) {
    if (memory != nullptr) part = reinterpret_cast<T*>(memory + bytes);
    bytes += round_up(count * sizeof(T), 64);
  }
};

/// A buffer for the parts that `carve(Carver&)` takes, called once to count and once to hand out.
/// Errors: those of AlignedBuffer::allocate().
template <typename Carve>
Result<AlignedBuffer> allocate_parts(const Carve& carve) {
  Carver measure;
  carve(measure);
  HEADRACE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(measure.bytes));
  Carver place{buffer.data()};
  carve(place);
  return buffer;
}

}  // namespace headrace
