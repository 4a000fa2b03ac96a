// IoCursor: walks a list of memory parts as the system moves bytes, so that an operation which did
// only a part of its work can go on exactly where it stopped.
#pragma once

#include <limits.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

template <typename Part>  // Bytes or MutableBytes
class IoCursor {
 public:
  explicit IoCursor(std::span<const Part> parts) : parts_(parts) {
    for (const Part& part : parts) remaining_bytes_ += part.size();
  }

  std::uint64_t remaining_bytes() const { return remaining_bytes_; }

  /// The parts still to do, as many as one system call takes. Valid until the next call.
  std::span<const iovec> next_batch() {
    std::size_t count = 0;
    std::size_t skip = offset_in_part_;
    for (std::size_t i = index_; i < parts_.size() && count < batch_.size(); ++i, skip = 0) {
      if (parts_[i].size() == skip) continue;
      // iovec has no const form; a write only reads through it.
      auto* base = const_cast<std::byte*>(parts_[i].data()) + skip;
      batch_[count++] = {base, parts_[i].size() - skip};
    }
    return std::span(batch_).first(count);
  }

  void advance(std::size_t bytes) {
    remaining_bytes_ -= bytes;
    while (bytes > 0) {
      const std::size_t step = std::min(bytes, parts_[index_].size() - offset_in_part_);
      bytes -= step;
      offset_in_part_ += step;
      if (offset_in_part_ == parts_[index_].size()) {
        ++index_;
        offset_in_part_ = 0;
      }
    }
  }

 private:
  // 4 KiB of stack; longer lists take several calls.
  static constexpr std::size_t kBatchParts = std::min(256, IOV_MAX);

  std::span<const Part> parts_;
  std::size_t index_ = 0;
  std::size_t offset_in_part_ = 0;
  std::uint64_t remaining_bytes_ = 0;
  std::array<iovec, kBatchParts> batch_;
};

}  // namespace headrace
