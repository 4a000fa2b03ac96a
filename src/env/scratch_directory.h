// ScratchDirectory: a fresh directory that goes away with everything in it.
#pragma once

#include <string>

#include "env/env.h"

namespace headrace {

/// Made under env.temporary_directory(), with a random name. `env` must outlive this.
class ScratchDirectory {
 public:
  static Result<ScratchDirectory> create(Env& env);
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }
  /// Path of `name` inside.
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  ScratchDirectory(Env& env, std::string path) : env_(&env), path_(std::move(path)) {}
  Env* env_;  // nullptr after a move
  std::string path_;
};

}  // namespace headrace
