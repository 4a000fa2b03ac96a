// MemoryDisk: a file system in memory, for MemoryEnv. It keeps apart what was written and what was
// made durable, so that a test can pull the plug.
//
// What a crash leaves: of each file the contents at its last successful sync(), and no file that
// was never synced. Directories, and the removal of a file, are durable at once.
//
// What a torn crash leaves: of each file those of its unsynced sectors that a seed chooses. A file
// whose name was never synced may be missing, and a removed one may be back, until the next sync of
// a new file or of its directory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "env/env.h"

namespace headrace {

/// Any thread. Must outlive the files and locks it gives out. Errors are as in env.h.
class MemoryDisk {
 public:
  /// The root, the current directory and `temporary_directory` exist from the start.
  MemoryDisk(std::uint64_t capacity_bytes, const std::string& temporary_directory);

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode);
  Result<std::string> read_all(const std::string& path);
  Result<void> remove_file(const std::string& path);
  Result<void> make_directories(const std::string& path);
  Result<void> remove_directory(const std::string& path);
  Result<std::vector<std::string>> list(const std::string& path);
  Result<void> sync_directory(const std::string& path);
  bool exists(const std::string& path);
  Result<std::unique_ptr<FileLock>> lock(const std::string& path);
  Result<std::uint64_t> free_bytes(const std::string& directory);

  /// Writes that would make the files larger than this together fail with out_of_budget, after
  /// writing what fits.
  void set_capacity(std::uint64_t bytes);

  /// The machine stops and starts again. Files opened before answer every operation with io; locks
  /// are free.
  void crash();
  void crash_torn(std::uint64_t seed);

 private:
  friend class MemoryFile;
  friend class MemoryLock;

  struct Node {
    std::vector<std::byte> data;
    std::optional<std::vector<std::byte>> durable;  // nullopt: never synced
  };
  using NodeRef = std::shared_ptr<Node>;

  // All of these want mutex_ to be held. Paths are normal: no "." or "..", no slash at the end.
  Result<NodeRef> find_file(std::string_view action, const std::string& path) const;
  bool is_directory(const std::string& path) const;
  Result<NodeRef> create_file(const std::string& path);
  void forget_removed(const std::string& directory);
  std::uint64_t used_bytes() const;
  std::uint64_t room_bytes() const;

  mutable std::mutex mutex_;
  std::uint64_t capacity_bytes_;
  std::map<std::string, NodeRef> nodes_;        // nullptr: a directory
  std::map<std::string, NodeRef> removed_;      // durable files whose removal is not
  std::map<std::string, std::uint64_t> locks_;  // path to the claim that holds it
  std::uint64_t claims_ = 0;
  std::uint64_t lives_ = 0;  // crashes so far; a file of an earlier life is dead
};

}  // namespace headrace
