#include "env/memory_env.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;

Result<void> write(File& file, std::uint64_t offset, std::string_view text) {
  const Bytes part = std::as_bytes(std::span(text));
  return file.write_at(offset, std::span(&part, 1));
}

TEST(MemoryEnv, ItsClockMovesOnlyWhenTold) {
  MemoryEnv env;
  EXPECT_EQ(env.now(), 0ns);
  env.advance(5ms);
  EXPECT_EQ(env.now(), 5ms);
}

TEST(MemoryEnv, RandomnessFollowsTheSeed) {
  MemoryEnv one(MemoryEnvOptions{.seed = 7});
  MemoryEnv same(MemoryEnvOptions{.seed = 7});
  MemoryEnv other(MemoryEnvOptions{.seed = 8});
  const std::uint64_t first = one.random();
  EXPECT_EQ(first, same.random());
  EXPECT_NE(first, other.random());
  EXPECT_NE(first, one.random());
}

TEST(MemoryEnv, AFullDiskTakesWhatFits) {
  MemoryEnv env(MemoryEnvOptions{.capacity_bytes = 10});
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(write(*file, 0, "12345678").ok());
  EXPECT_EQ(env.free_bytes("/").value(), 2U);
  const Error error = write(*file, 8, "abcd").error();
  EXPECT_EQ(error.code, ErrorCode::out_of_budget);
  EXPECT_EQ(error.message, "cannot write 'a': No space left on device");
  EXPECT_EQ(env.read_file("a").value(), "12345678ab");
  EXPECT_TRUE(write(*file, 0, "overwrites").ok());
  EXPECT_EQ(file->truncate(11).error().code, ErrorCode::out_of_budget);
}

TEST(MemoryEnv, ADiskCanFillUpAndBeCleared) {
  MemoryEnv env;
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(write(*file, 0, "12345678").ok());
  env.set_capacity(4);
  EXPECT_EQ(env.free_bytes("/").value(), 0U);
  EXPECT_FALSE(write(*file, 8, "9").ok());
  ASSERT_TRUE(file->truncate(2).ok());
  EXPECT_TRUE(write(*file, 2, "34").ok());
}

TEST(MemoryEnv, ACrashKeepsWhatWasSynced) {
  MemoryEnv env;
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(write(*file, 0, "synced").ok());
  ASSERT_TRUE(file->sync().ok());
  ASSERT_TRUE(write(*file, 0, "UNSYNCED").ok());
  ASSERT_TRUE(env.open_file("b", OpenMode::create_new).ok());
  ASSERT_TRUE(env.make_directories("d").ok());
  env.crash();
  EXPECT_EQ(env.read_file("a").value(), "synced");
  EXPECT_FALSE(env.exists("b"));
  EXPECT_TRUE(env.exists("d"));
}

TEST(MemoryEnv, FilesOpenedBeforeACrashAreDead) {
  MemoryEnv env;
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(file->sync().ok());
  env.crash();
  EXPECT_EQ(write(*file, 0, "x").error().code, ErrorCode::io);
  EXPECT_EQ(file->sync().error().code, ErrorCode::io);
  EXPECT_EQ(file->size().error().code, ErrorCode::io);
  EXPECT_EQ(env.read_file("a").value(), "");
}

TEST(MemoryEnv, ACrashFreesLocksAndForgetsTheirHolders) {
  MemoryEnv env;
  auto before = env.lock_file("LOCK").value();
  env.crash();
  const auto after = env.lock_file("LOCK").value();
  before.reset();
  EXPECT_FALSE(env.lock_file("LOCK").ok());
}

TEST(MemoryEnv, PathsThatMeanTheSameAreTheSame) {
  MemoryEnv env;
  ASSERT_TRUE(env.make_directories("/cache/x").ok());
  ASSERT_TRUE(env.open_file("/cache/./x/../a", OpenMode::create_new).ok());
  EXPECT_TRUE(env.exists("/cache//a"));
  EXPECT_EQ(env.list_directory("/cache/").value(), (std::vector<std::string>{"a", "x"}));
}

TEST(MemoryEnv, ManualJobsWaitForTheTest) {
  MemoryEnv env(MemoryEnvOptions{.executors = ExecutorKind::manual});
  std::vector<int> order;
  const auto executor = env.new_executor(4);
  const auto other = env.new_executor(1);
  executor->submit([&] {
    order.push_back(1);
    executor->submit([&] { order.push_back(3); });
  });
  other->submit([&] { order.push_back(2); });
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(env.run_next());
  EXPECT_EQ(order, (std::vector<int>{1}));
  EXPECT_EQ(env.run_pending(), 2U);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(env.run_next());
}

TEST(MemoryEnv, HasNoProgramsButThoseOfTheTest) {
  MemoryEnv env;
  EXPECT_EQ(env.run_program({{"peer", "-x"}}).error().code, ErrorCode::not_found);
  env.set_programs([](const ProgramStart& start) -> Result<ProgramOutput> {
    return ProgramOutput{.exit_code = 3, .out = start.arguments.at(1)};
  });
  EXPECT_EQ(env.run_program({{"peer", "-x"}})->out, "-x");
}

TEST(MemoryEnv, AManualExecutorDrainsOnlyItself) {
  MemoryEnv env(MemoryEnvOptions{.executors = ExecutorKind::manual});
  std::vector<int> order;
  const auto other = env.new_executor(1);
  other->submit([&] { order.push_back(1); });
  env.new_executor(1)->submit([&] { order.push_back(2); });
  EXPECT_EQ(order, (std::vector<int>{2}));
  EXPECT_EQ(env.run_pending(), 1U);
}

}  // namespace
}  // namespace headrace
