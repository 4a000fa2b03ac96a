#include "env/scratch_directory.h"

#include <utility>

namespace headrace {
namespace {

// What cannot be removed stays: there is no one to tell, and a temporary directory is swept by its
// owner.
void remove_tree(Env& env, const std::string& path) {
  if (env.remove_file(path).ok()) return;
  const auto names = env.list_directory(path);
  if (!names.ok()) return;
  for (const std::string& name : *names)
    remove_tree(env, std::string(path).append("/").append(name));
  static_cast<void>(env.remove_directory(path));
}

}  // namespace

Result<ScratchDirectory> ScratchDirectory::create(Env& env) {
  std::string path = env.temporary_directory() + "/headrace-" + std::to_string(env.random());
  HEADRACE_TRY(env.make_directories(path));
  return ScratchDirectory(env, std::move(path));
}

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept
    : env_(std::exchange(other.env_, nullptr)), path_(std::move(other.path_)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): Result::value() after ok() does not throw.
ScratchDirectory::~ScratchDirectory() {
  if (env_ != nullptr) remove_tree(*env_, path_);
}

}  // namespace headrace
