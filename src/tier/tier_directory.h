// TierDirectory: a directory that one process claims for its files.
//
//   1. open() makes it if missing, takes `headrace.lock`, removes probe files that a process which
//      died left behind, and proves that a file can be made in it.
//   2. The destructor removes the lock file, and the directories that open() made, if they are
//      empty then.
//
// Files with other names are never touched.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "env/env.h"

namespace headrace {

class TierDirectory {
 public:
  /// Errors: invalid_argument (empty path), io (cannot be made or written, or another process uses
  /// it). The message is for the person who chose the directory and says what to do.
  static Result<std::unique_ptr<TierDirectory>> open(Env& env, const std::string& path);
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file_path(const std::string& name) const;
  /// Whether this is a name of a file of this class, which holds nothing.
  static bool is_own_name(const std::string& name);

 private:
  TierDirectory(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  void end();
  Result<void> make();
  Result<void> claim();
  void remove_stale_files();
  Result<void> probe();

  Env& env_;
  std::string path_;
  std::vector<std::string> made_;  // directories that open() made, outermost first
  std::unique_ptr<FileLock> lock_;
};

}  // namespace headrace
