#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace headrace {

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  AlignedBuffer incoming(std::move(other));
  std::swap(data_, incoming.data_);
  std::swap(size_, incoming.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<AlignedBuffer> AlignedBuffer::allocate(std::size_t bytes) {
  if (bytes == 0) return AlignedBuffer();
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::out_of_budget, "cannot allocate " + format_byte_count(bytes) + ": " +
                                               std::generic_category().message(errno)};
  }
  return AlignedBuffer(static_cast<std::byte*>(memory), bytes);
}

void AlignedBuffer::discard(std::size_t offset, std::size_t bytes) {
  if (bytes > 0) ::madvise(data_ + offset, bytes, MADV_DONTNEED);
}

}  // namespace headrace
