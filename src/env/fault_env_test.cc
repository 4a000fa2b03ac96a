#include "env/fault_env.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string>

#include "env/memory_env.h"

namespace headrace {
namespace {

class FaultEnvTest : public testing::Test {
 protected:
  static Result<void> write(File& file, std::string_view text) {
    const Bytes part = std::as_bytes(std::span(text));
    return file.write_at(0, std::span(&part, 1));
  }

  static Result<std::string> read(File& file, std::size_t size) {
    std::string text(size, '?');
    const MutableBytes bytes = std::as_writable_bytes(std::span(text));
    const std::array parts = {bytes.first(size / 2), bytes.subspan(size / 2)};
    HEADRACE_TRY(file.read_at(0, parts));
    return text;
  }

  static int different_bits(std::string_view a, std::string_view b) {
    int bits = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      bits += std::popcount(static_cast<unsigned char>(a[i] ^ b[i]));
    }
    return bits;
  }

  MemoryEnv base;
  FaultEnv env{base};
};

TEST_F(FaultEnvTest, FailsTheChosenOperationOnce) {
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(write(*file, "text").ok());
  env.set_plan({{.operation = EnvOperation::read, .at = 2}});
  EXPECT_TRUE(read(*file, 4).ok());
  const Error error = read(*file, 4).error();
  EXPECT_EQ(error.code, ErrorCode::io);
  EXPECT_EQ(error.message, "injected fault: read 'a'");
  EXPECT_TRUE(read(*file, 4).ok());
  EXPECT_EQ(env.count(EnvOperation::read), 3U);
  EXPECT_EQ(env.faults(), 1U);
}

TEST_F(FaultEnvTest, FailsFromThenOnWithTheChosenError) {
  const auto file = env.open_file("a", OpenMode::create_new).value();
  env.set_plan({{.operation = EnvOperation::write,
                 .at = 2,
                 .lasting = true,
                 .code = ErrorCode::out_of_budget}});
  EXPECT_TRUE(write(*file, "1").ok());
  EXPECT_EQ(write(*file, "2").error().code, ErrorCode::out_of_budget);
  EXPECT_EQ(write(*file, "3").error().code, ErrorCode::out_of_budget);
  env.set_plan({});
  EXPECT_TRUE(write(*file, "4").ok());
}

TEST_F(FaultEnvTest, EveryOperationCanFail) {
  const auto work = [](Env& world) -> Result<void> {
    HEADRACE_TRY(world.make_directories("d"));
    HEADRACE_TRY_ASSIGN(const auto lock, world.lock_file("d/LOCK"));
    HEADRACE_TRY_ASSIGN(const auto file, world.open_file("d/a", OpenMode::create_new));
    HEADRACE_TRY(write(*file, "text"));
    HEADRACE_TRY(file->sync());
    HEADRACE_TRY(read(*file, 4));
    HEADRACE_TRY(file->size());
    HEADRACE_TRY(file->truncate(2));
    HEADRACE_TRY(world.read_file("d/a"));
    HEADRACE_TRY(world.map_file("d/a"));
    HEADRACE_TRY(world.free_bytes("d"));
    HEADRACE_TRY(world.list_directory("d"));
    HEADRACE_TRY(world.run_program({{"program"}}));
    HEADRACE_TRY(world.remove_file("d/a"));
    HEADRACE_TRY(world.remove_file("d/LOCK"));
    return world.remove_directory("d");
  };
  const auto programs = [](const ProgramStart&) -> Result<ProgramOutput> {
    return ProgramOutput();
  };
  base.set_programs(programs);
  ASSERT_TRUE(work(env).ok());
  const std::uint64_t operations = env.count(EnvOperation::any);
  EXPECT_EQ(operations, 16U);
  for (std::uint64_t at = 1; at <= operations; ++at) {
    MemoryEnv fresh;
    fresh.set_programs(programs);
    FaultEnv faulty(fresh);
    faulty.set_plan({{.at = at, .code = ErrorCode::page_lost}});
    const Result<void> result = work(faulty);
    ASSERT_FALSE(result.ok()) << at;
    EXPECT_EQ(result.error().code, ErrorCode::page_lost);
    EXPECT_EQ(faulty.count(EnvOperation::any), at);
  }
}

TEST_F(FaultEnvTest, FlipsOneBitOfWhatIsRead) {
  const std::string text = "sixteen letters.";
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(write(*file, text).ok());
  for (std::uint64_t bit = 0; bit < 200; bit += 7) {
    env.set_plan({{.operation = EnvOperation::read, .kind = FaultKind::flip_bit, .bit = bit},
                  {.operation = EnvOperation::map, .kind = FaultKind::flip_bit, .bit = bit},
                  {.operation = EnvOperation::read_file, .kind = FaultKind::flip_bit, .bit = bit}});
    const std::string damaged = read(*file, text.size()).value();
    EXPECT_EQ(different_bits(damaged, text), 1) << bit;
    EXPECT_EQ(env.read_file("a").value(), damaged);
    const auto mapped = env.map_file("a").value();
    EXPECT_EQ(mapped->bytes()[bit % 128 / 8], static_cast<std::byte>(damaged[bit % 128 / 8]));
    EXPECT_EQ(read(*file, text.size()).value(), text);
  }
}

TEST_F(FaultEnvTest, FlipsOneBitOfWhatIsWritten) {
  const auto file = env.open_file("a", OpenMode::create_new).value();
  env.set_plan({{.operation = EnvOperation::write, .kind = FaultKind::flip_bit, .bit = 3}});
  ASSERT_TRUE(write(*file, "text").ok());
  EXPECT_EQ(different_bits(env.read_file("a").value(), "text"), 1);
}

TEST_F(FaultEnvTest, AFileCanEndEarly) {
  const auto file = env.open_file("a", OpenMode::create_new).value();
  ASSERT_TRUE(write(*file, "12345678").ok());
  env.set_plan({{.operation = EnvOperation::read, .kind = FaultKind::end_early},
                {.operation = EnvOperation::map, .kind = FaultKind::end_early},
                {.operation = EnvOperation::read_file, .kind = FaultKind::end_early}});
  EXPECT_EQ(read(*file, 8).error().code, ErrorCode::corrupt);
  EXPECT_EQ(env.read_file("a").value(), "1234");
  EXPECT_EQ(env.map_file("a").value()->bytes().size(), 4U);
}

TEST_F(FaultEnvTest, ATornWriteLeavesItsFirstHalf) {
  const auto file = env.open_file("a", OpenMode::create_new).value();
  env.set_plan({{.operation = EnvOperation::write, .kind = FaultKind::tear}});
  EXPECT_EQ(write(*file, "12345678").error().code, ErrorCode::io);
  EXPECT_EQ(base.read_file("a").value(), "1234");
}

TEST_F(FaultEnvTest, AFaultThatCannotHappenIsABugOfTheTest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(env.set_plan({{.operation = EnvOperation::sync, .kind = FaultKind::flip_bit}}),
               "this can happen to the operation");
}

}  // namespace
}  // namespace headrace
