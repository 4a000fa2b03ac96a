// What only the real world can show.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "env/env.h"
#include "env/scratch_directory.h"

namespace headrace {
namespace {

mode_t permissions(const std::string& path) {
  struct stat facts{};
  EXPECT_EQ(::stat(path.c_str(), &facts), 0);
  return facts.st_mode & 0777;
}

TEST(PosixEnv, KeepsWhatItMakesFromOtherUsers) {
  Env& env = posix_env();
  const ScratchDirectory scratch = ScratchDirectory::create(env).value();
  ASSERT_TRUE(env.open_file(scratch.file("a"), OpenMode::create_new).ok());
  ASSERT_TRUE(env.make_directories(scratch.file("b/c")).ok());
  EXPECT_EQ(permissions(scratch.file("a")), 0600U);
  EXPECT_EQ(permissions(scratch.file("b")), 0700U);
  EXPECT_EQ(permissions(scratch.file("b/c")), 0700U);
}

TEST(PosixEnv, AFullDeviceIsOutOfBudget) {
  const auto full = posix_env().open_file("/dev/full", OpenMode::read_write);
  ASSERT_TRUE(full.ok());
  const Bytes part = std::as_bytes(std::span("text"));
  const Error error = full.value()->write_at(0, std::span(&part, 1)).error();
  EXPECT_EQ(error.code, ErrorCode::out_of_budget);
  EXPECT_EQ(error.message, "cannot write '/dev/full': No space left on device");
}

TEST(PosixEnv, ReadsAFileWhoseSizeIsNotKnown) {
  EXPECT_NE(posix_env().read_file("/proc/self/status").value().find("Pid:"), std::string::npos);
}

TEST(PosixEnv, AScratchDirectoryTakesItsContentsAlong) {
  Env& env = posix_env();
  std::string path;
  {
    const ScratchDirectory scratch = ScratchDirectory::create(env).value();
    path = scratch.path();
    ASSERT_TRUE(env.make_directories(scratch.file("a/b")).ok());
    ASSERT_TRUE(env.open_file(scratch.file("a/b/c"), OpenMode::create_new).ok());
  }
  EXPECT_FALSE(env.exists(path));
}

}  // namespace
}  // namespace headrace
