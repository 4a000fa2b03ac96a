// Open files and locks of a MemoryDisk.
#pragma once

#include <string>

#include "env/memory_disk.h"

namespace headrace {

class MemoryFile final : public File {
 public:
  MemoryFile(MemoryDisk& disk, MemoryDisk::NodeRef node, std::string path, OpenMode mode)
      : disk_(disk),
        node_(std::move(node)),
        path_(std::move(path)),
        mode_(mode),
        life_(disk.lives_) {}

  Result<void> read_at(std::uint64_t offset, std::span<const MutableBytes> parts) override;
  Result<void> write_at(std::uint64_t offset, std::span<const Bytes> parts) override;
  Result<void> sync() override;
  Result<std::uint64_t> size() const override;
  Result<void> truncate(std::uint64_t size) override;
  void drop_cache() override {}
  Result<void> use_direct_io() override { return {}; }

 private:
  // Wants the disk's mutex to be held.
  Result<void> check_usable(std::string_view action, bool changes) const;

  MemoryDisk& disk_;
  const MemoryDisk::NodeRef node_;
  const std::string path_;
  const OpenMode mode_;
  const std::uint64_t life_;
};

class MemoryLock final : public FileLock {
 public:
  MemoryLock(MemoryDisk& disk, std::string path, std::uint64_t claim)
      : disk_(disk), path_(std::move(path)), claim_(claim) {}
  MemoryLock(const MemoryLock&) = delete;
  MemoryLock& operator=(const MemoryLock&) = delete;
  ~MemoryLock() override;

 private:
  MemoryDisk& disk_;
  const std::string path_;
  const std::uint64_t claim_;
};

/// A copy of a file's contents that passes for a mapping.
class MemoryMapping final : public MappedFile {
 public:
  explicit MemoryMapping(std::string contents) : contents_(std::move(contents)) {}
  Bytes bytes() const override { return std::as_bytes(std::span(contents_)); }

 private:
  const std::string contents_;
};

}  // namespace headrace
