#include "env/memory_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "env/posix_error.h"

namespace headrace {

Result<void> MemoryFile::read_at(std::uint64_t offset, std::span<const MutableBytes> parts) {
  const std::lock_guard lock(disk_.mutex_);
  HEADRACE_TRY(check_usable("read", false));
  const Bytes data = node_->data;
  std::uint64_t asked = 0;
  for (const MutableBytes part : parts) asked += part.size();
  const std::uint64_t there = offset < data.size() ? data.size() - offset : 0;
  if (asked > there) {
    return Error{ErrorCode::corrupt, "'" + path_ + "' ends early: at byte " +
                                         std::to_string(offset + there) + ", " +
                                         std::to_string(asked - there) + " bytes are missing"};
  }
  if (asked == 0) return {};
  for (const MutableBytes part : parts) {
    std::ranges::copy(data.subspan(offset, part.size()), part.begin());
    offset += part.size();
  }
  return {};
}

Result<void> MemoryFile::write_at(std::uint64_t offset, std::span<const Bytes> parts) {
  const std::lock_guard lock(disk_.mutex_);
  HEADRACE_TRY(check_usable("write", true));
  std::vector<std::byte>& data = node_->data;
  const std::uint64_t end_max =
      data.size() + std::min(disk_.room_bytes(), UINT64_MAX - data.size());
  for (const Bytes part : parts) {
    const std::uint64_t fits = offset < end_max ? std::min(part.size(), end_max - offset) : 0;
    if (fits > 0) {
      data.resize(std::max(data.size(), offset + fits));
      std::ranges::copy(part.first(fits), data.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    if (fits < part.size()) return posix_error("write", path_, ENOSPC);
    offset += fits;
  }
  return {};
}

Result<void> MemoryFile::sync() {
  const std::lock_guard lock(disk_.mutex_);
  HEADRACE_TRY(check_usable("sync", false));
  if (!node_->durable.has_value()) {
    disk_.forget_removed(std::filesystem::path(path_).parent_path().string());
  }
  node_->durable = node_->data;
  return {};
}

Result<std::uint64_t> MemoryFile::size() const {
  const std::lock_guard lock(disk_.mutex_);
  HEADRACE_TRY(check_usable("stat", false));
  return static_cast<std::uint64_t>(node_->data.size());
}

Result<void> MemoryFile::truncate(std::uint64_t size) {
  const std::lock_guard lock(disk_.mutex_);
  HEADRACE_TRY(check_usable("truncate", true));
  const std::uint64_t now = node_->data.size();
  if (size > now && size - now > disk_.room_bytes()) {
    return posix_error("truncate", path_, ENOSPC);
  }
  node_->data.resize(size);
  return {};
}

Result<void> MemoryFile::check_usable(std::string_view action, bool changes) const {
  if (life_ != disk_.lives_) return posix_error(action, path_, EIO);
  if (changes && mode_ == OpenMode::read) return posix_error(action, path_, EBADF);
  return {};
}

MemoryLock::~MemoryLock() {
  const std::lock_guard lock(disk_.mutex_);
  const auto held = disk_.locks_.find(path_);
  // After a crash the path may belong to someone else.
  if (held != disk_.locks_.end() && held->second == claim_) disk_.locks_.erase(held);
}

}  // namespace headrace
