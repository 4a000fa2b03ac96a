// TierDirectory: a directory that one process claims for its page files, and leaves as it found it.
//
//   1. open() makes it if missing, takes `headrace.lock`, removes page files that a process which
//      died left behind, and proves that a file can be made in it.
//   2. create_page_file() makes the page file.
//   3. The destructor removes the page file, the lock file, and the directories that open() made,
//      if they are empty.
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

  /// Makes the page file, at most one. It must be closed before this ends.
  Result<std::unique_ptr<File>> create_page_file();

 private:
  TierDirectory(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  Result<void> make();
  Result<void> claim();
  void remove_stale_files();
  Result<void> probe();
  std::string file_path(const std::string& name) const;
  Result<std::unique_ptr<File>> create_file_with_random_name(std::string& path_out);

  Env& env_;
  std::string path_;
  std::vector<std::string> made_;  // directories that open() made, outermost first
  std::unique_ptr<FileLock> lock_;
  std::string page_file_path_;  // empty until there is one
};

}  // namespace headrace
