#include "env/memory_disk.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <random>

#include "env/memory_file.h"
#include "env/posix_error.h"

namespace headrace {
namespace {

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text == "." ? "" : text;
}

std::string parent_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

MemoryDisk::MemoryDisk(std::uint64_t capacity_bytes, const std::string& temporary_directory)
    : capacity_bytes_(capacity_bytes), nodes_{{"", nullptr}, {"/", nullptr}} {
  nodes_.emplace(normal(temporary_directory), nullptr);
}

Result<std::unique_ptr<File>> MemoryDisk::open(const std::string& path, OpenMode mode) {
  const std::lock_guard lock(mutex_);
  const std::string name = normal(path);
  auto node = mode == OpenMode::create_new ? create_file(name) : find_file("open", name);
  HEADRACE_TRY_ASSIGN(NodeRef found, std::move(node));
  return std::unique_ptr<File>(std::make_unique<MemoryFile>(*this, std::move(found), name, mode));
}

Result<std::string> MemoryDisk::read_all(const std::string& path) {
  const std::lock_guard lock(mutex_);
  HEADRACE_TRY_ASSIGN(const NodeRef node, find_file("open", normal(path)));
  std::string text(node->data.size(), '\0');
  std::transform(node->data.begin(), node->data.end(), text.begin(),
                 [](std::byte value) { return static_cast<char>(value); });
  return text;
}

Result<void> MemoryDisk::remove_file(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normal(path);
  HEADRACE_TRY_ASSIGN(const NodeRef node, find_file("remove", name));
  nodes_.erase(name);
  if (node->durable.has_value()) removed_[name] = node;
  return {};
}

Result<void> MemoryDisk::make_directories(const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::filesystem::path made;
  for (const auto& part : std::filesystem::path(normal(path))) {
    made /= part;
    const auto [entry, is_new] = nodes_.emplace(made.string(), nullptr);
    if (!is_new && entry->second != nullptr) {
      return posix_error("make directory", path, ENOTDIR);
    }
  }
  return {};
}

Result<void> MemoryDisk::remove_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normal(path);
  if (!nodes_.contains(name)) return posix_error("remove directory", path, ENOENT);
  if (!is_directory(name)) return posix_error("remove directory", path, ENOTDIR);
  for (const auto& [other, node] : nodes_) {
    if (other != name && parent_of(other) == name) {
      return posix_error("remove directory", path, ENOTEMPTY);
    }
  }
  nodes_.erase(name);
  return {};
}

Result<std::vector<std::string>> MemoryDisk::list(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normal(path);
  if (!nodes_.contains(name)) return posix_error("list directory", path, ENOENT);
  if (!is_directory(name)) return posix_error("list directory", path, ENOTDIR);
  std::vector<std::string> names;
  for (const auto& [other, node] : nodes_) {
    const std::string last = std::filesystem::path(other).filename().string();
    if (!last.empty() && parent_of(other) == name) names.push_back(last);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool MemoryDisk::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return nodes_.contains(normal(path));
}

Result<std::unique_ptr<FileLock>> MemoryDisk::lock(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normal(path);
  if (locks_.contains(name)) {
    return Error{ErrorCode::io, "'" + path + "' is held by someone else"};
  }
  if (!nodes_.contains(name)) HEADRACE_TRY(create_file(name));
  HEADRACE_TRY(find_file("lock", name));
  locks_[name] = ++claims_;
  return std::unique_ptr<FileLock>(std::make_unique<MemoryLock>(*this, name, claims_));
}

Result<std::uint64_t> MemoryDisk::free_bytes(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  if (!nodes_.contains(normal(directory))) {
    return posix_error("measure the free space of", directory, ENOENT);
  }
  return room_bytes();
}

void MemoryDisk::set_capacity(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_bytes_ = bytes;
}

void MemoryDisk::crash() {
  const std::lock_guard lock(mutex_);
  ++lives_;
  locks_.clear();
  removed_.clear();
  for (auto entry = nodes_.begin(); entry != nodes_.end();) {
    const NodeRef node = entry->second;
    const bool lost = node != nullptr && !node->durable.has_value();
    if (node != nullptr && !lost) node->data = *node->durable;
    entry = lost ? nodes_.erase(entry) : std::next(entry);
  }
}

void MemoryDisk::crash_torn(std::uint64_t seed) {
  constexpr std::size_t sector_bytes = 512;
  const std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  ++lives_;
  locks_.clear();
  for (const auto& [path, node] : removed_) {
    if (random() % 2 == 0) nodes_.emplace(path, node);
  }
  removed_.clear();
  const std::uint64_t kept_of_8 = random() % 9;  // from nothing to everything
  const auto is_kept = [&] { return random() % 8 < kept_of_8; };
  for (auto entry = nodes_.begin(); entry != nodes_.end();) {
    const NodeRef node = entry->second;
    const bool lost = node != nullptr && !node->durable.has_value() && !is_kept();
    if (node != nullptr && !lost) {
      std::vector<std::byte> left = node->durable.value_or(std::vector<std::byte>());
      const std::vector<std::byte>& written = node->data;
      for (std::size_t at = 0; at < written.size(); at += sector_bytes) {
        const std::size_t end = std::min(at + sector_bytes, written.size());
        if (!is_kept()) continue;
        left.resize(std::max(left.size(), end));
        std::copy(written.begin() + static_cast<std::ptrdiff_t>(at),
                  written.begin() + static_cast<std::ptrdiff_t>(end),
                  left.begin() + static_cast<std::ptrdiff_t>(at));
      }
      node->data = left;
      node->durable = std::move(left);
    }
    entry = lost ? nodes_.erase(entry) : std::next(entry);
  }
}

Result<void> MemoryDisk::sync_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normal(path);
  if (!is_directory(name)) return posix_error("sync", path, ENOENT);
  forget_removed(name);
  for (const auto& [other, node] : nodes_) {
    const bool is_new = node != nullptr && !node->durable.has_value();
    if (is_new && parent_of(other) == name) node->durable.emplace();
  }
  return {};
}

void MemoryDisk::forget_removed(const std::string& directory) {
  std::erase_if(removed_, [&](const auto& entry) { return parent_of(entry.first) == directory; });
}

Result<MemoryDisk::NodeRef> MemoryDisk::find_file(std::string_view action,
                                                  const std::string& path) const {
  const auto entry = nodes_.find(path);
  if (entry == nodes_.end()) return posix_error(action, path, ENOENT);
  if (entry->second == nullptr) return posix_error(action, path, EISDIR);
  return entry->second;
}

bool MemoryDisk::is_directory(const std::string& path) const {
  const auto entry = nodes_.find(path);
  return entry != nodes_.end() && entry->second == nullptr;
}

Result<MemoryDisk::NodeRef> MemoryDisk::create_file(const std::string& path) {
  if (nodes_.contains(path)) return posix_error("create", path, EEXIST);
  if (!is_directory(parent_of(path))) return posix_error("create", path, ENOENT);
  return nodes_.emplace(path, std::make_shared<Node>()).first->second;
}

std::uint64_t MemoryDisk::used_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [path, node] : nodes_) sum += node == nullptr ? 0 : node->data.size();
  return sum;
}

std::uint64_t MemoryDisk::room_bytes() const {
  const std::uint64_t used = used_bytes();
  return capacity_bytes_ > used ? capacity_bytes_ - used : 0;
}

}  // namespace headrace
