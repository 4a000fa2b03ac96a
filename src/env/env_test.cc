// What every Env promises, for each of them.
#include "env/env.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "env/fault_env.h"
#include "env/memory_env.h"
#include "env/scratch_directory.h"

namespace headrace {
namespace {

struct EnvCase {
  const char* name;
  std::function<Env&()> get;
};

std::ostream& operator<<(std::ostream& out, const EnvCase& instance) {
  return out << instance.name;
}

Env& memory_env() {
  static MemoryEnv env;
  return env;
}

Env& fault_env() {
  static FaultEnv env(memory_env());
  return env;
}

class EnvConformance : public testing::TestWithParam<EnvCase> {
 protected:
  std::unique_ptr<File> create(const std::string& name) {
    return env.open_file(scratch.file(name), OpenMode::create_new).value();
  }

  Env& env = GetParam().get();
  ScratchDirectory scratch = ScratchDirectory::create(env).value();
};

INSTANTIATE_TEST_SUITE_P(, EnvConformance,
                         testing::Values(EnvCase{"Posix", posix_env}, EnvCase{"Memory", memory_env},
                                         EnvCase{"Fault", fault_env}),
                         [](const auto& instance) { return instance.param.name; });

void write(File& file, std::uint64_t offset, std::string_view text) {
  const Bytes part = std::as_bytes(std::span(text));
  ASSERT_TRUE(file.write_at(offset, std::span(&part, 1)).ok());
}

Result<std::string> read(File& file, std::uint64_t offset, std::size_t size) {
  std::string text(size, '?');
  const MutableBytes part = std::as_writable_bytes(std::span(text));
  HEADRACE_TRY(file.read_at(offset, std::span(&part, 1)));
  return text;
}

TEST_P(EnvConformance, ReadsBackWhatWasWritten) {
  const auto file = create("a");
  write(*file, 0, "hello world");
  write(*file, 6, "there");
  EXPECT_EQ(read(*file, 0, 11).value(), "hello there");
  EXPECT_EQ(file->size().value(), 11U);
  ASSERT_TRUE(file->sync().ok());
  file->drop_cache();
  EXPECT_EQ(env.read_file(scratch.file("a")).value(), "hello there");
}

TEST_P(EnvConformance, ScattersAndGathersManyParts) {
  constexpr std::size_t kParts = 2500;  // more than one system call takes
  std::string text;
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < kParts; ++i) {
    sizes.push_back(i % 7);
    text.append(i % 7, static_cast<char>('a' + i % 26));
  }
  std::vector<Bytes> written;
  std::string back(text.size(), '?');
  std::vector<MutableBytes> reading;
  std::size_t offset = 0;
  for (const std::size_t size : sizes) {
    written.push_back(std::as_bytes(std::span(text)).subspan(offset, size));
    reading.push_back(std::as_writable_bytes(std::span(back)).subspan(offset, size));
    offset += size;
  }
  const auto file = create("parts");
  ASSERT_TRUE(file->write_at(100, written).ok());
  ASSERT_TRUE(file->read_at(100, reading).ok());
  EXPECT_EQ(back, text);
  EXPECT_EQ(read(*file, 0, 100).value(), std::string(100, '\0'));
}

TEST_P(EnvConformance, AFileThatEndsEarlyIsCorrupt) {
  const auto file = create("a");
  write(*file, 0, "12345678");
  const Error error = read(*file, 5, 10).error();
  EXPECT_EQ(error.code, ErrorCode::corrupt);
  EXPECT_EQ(error.message,
            "'" + scratch.file("a") + "' ends early: at byte 8, 7 bytes are missing");
  EXPECT_EQ(read(*file, 100, 1).error().code, ErrorCode::corrupt);
  EXPECT_EQ(read(*file, 100, 0).value(), "");
}

TEST_P(EnvConformance, OpensAsTheModeSays) {
  EXPECT_EQ(env.open_file(scratch.file("a"), OpenMode::read).error().code, ErrorCode::not_found);
  EXPECT_EQ(env.open_file(scratch.file("a"), OpenMode::read_write).error().code,
            ErrorCode::not_found);
  write(*create("a"), 0, "x");
  EXPECT_EQ(env.open_file(scratch.file("a"), OpenMode::create_new).error().code, ErrorCode::io);

  const auto file = env.open_file(scratch.file("a"), OpenMode::read).value();
  EXPECT_EQ(read(*file, 0, 1).value(), "x");
  const Bytes none_of_your_business = std::as_bytes(std::span("y"));
  EXPECT_EQ(file->write_at(0, std::span(&none_of_your_business, 1)).error().code, ErrorCode::io);
}

TEST_P(EnvConformance, NamesThePathAndTheReason) {
  const std::string path = scratch.file("missing");
  EXPECT_EQ(env.open_file(path, OpenMode::read).error().message,
            "cannot open '" + path + "': No such file or directory");
  EXPECT_EQ(env.read_file(path).error().message,
            "cannot open '" + path + "': No such file or directory");
  EXPECT_EQ(env.remove_file(path).error().message,
            "cannot remove '" + path + "': No such file or directory");
}

TEST_P(EnvConformance, AnOpenFileOutlivesItsName) {
  const auto file = create("a");
  write(*file, 0, "x");
  ASSERT_TRUE(env.remove_file(scratch.file("a")).ok());
  EXPECT_FALSE(env.exists(scratch.file("a")));
  EXPECT_EQ(read(*file, 0, 1).value(), "x");
}

TEST_P(EnvConformance, TruncatesAndExtends) {
  const auto file = create("a");
  write(*file, 0, "12345678");
  ASSERT_TRUE(file->truncate(3).ok());
  ASSERT_TRUE(file->truncate(5).ok());
  EXPECT_EQ(read(*file, 0, 5).value(), std::string("123\0\0", 5));
}

TEST_P(EnvConformance, MapsAFileButNothingElse) {
  write(*create("a"), 0, "mapped");
  const auto mapped = env.map_file(scratch.file("a")).value();
  ASSERT_EQ(mapped->bytes().size(), 6U);
  EXPECT_EQ(mapped->bytes()[3], std::byte{'p'});
  create("empty");
  EXPECT_EQ(env.map_file(scratch.file("empty")).error().code, ErrorCode::corrupt);
  EXPECT_EQ(env.map_file(scratch.path()).error().code, ErrorCode::io);
  EXPECT_EQ(env.map_file(scratch.file("missing")).error().code, ErrorCode::not_found);
}

TEST_P(EnvConformance, MakesListsAndRemovesDirectories) {
  ASSERT_TRUE(env.make_directories(scratch.file("a/b//c/")).ok());
  ASSERT_TRUE(env.make_directories(scratch.file("a/b/c")).ok());
  create("a/z");
  create("a/k");
  EXPECT_EQ(env.list_directory(scratch.file("a")).value(),
            (std::vector<std::string>{"b", "k", "z"}));
  EXPECT_TRUE(env.exists(scratch.file("a/b/c")));
  EXPECT_EQ(env.remove_directory(scratch.file("a")).error().code, ErrorCode::io);
  EXPECT_TRUE(env.remove_directory(scratch.file("a/b/c")).ok());
  EXPECT_FALSE(env.exists(scratch.file("a/b/c")));
}

TEST_P(EnvConformance, RefusesDirectoriesThatCannotBe) {
  create("file");
  EXPECT_EQ(env.make_directories(scratch.file("file")).error().code, ErrorCode::io);
  EXPECT_EQ(env.make_directories(scratch.file("file/below")).error().code, ErrorCode::io);
  EXPECT_EQ(env.list_directory(scratch.file("missing")).error().code, ErrorCode::not_found);
  EXPECT_EQ(env.remove_directory(scratch.file("missing")).error().code, ErrorCode::not_found);
  EXPECT_EQ(env.open_file(scratch.file("missing/a"), OpenMode::create_new).error().code,
            ErrorCode::not_found);
  EXPECT_EQ(env.read_file(scratch.path()).error().code, ErrorCode::io);
  EXPECT_EQ(env.remove_file(scratch.path()).error().code, ErrorCode::io);
}

TEST_P(EnvConformance, ALockIsRefusedASecondTimeAndFreeAfterwards) {
  const std::string path = scratch.file("LOCK");
  auto first = env.lock_file(path);
  ASSERT_TRUE(first.ok());
  const Error error = env.lock_file(path).error();
  EXPECT_EQ(error.code, ErrorCode::io);
  EXPECT_EQ(error.message, "'" + path + "' is held by someone else");
  first->reset();
  EXPECT_TRUE(env.exists(path));
  EXPECT_TRUE(env.lock_file(path).ok());
}

TEST_P(EnvConformance, AnExecutorRunsEveryJobBeforeItEnds) {
  std::atomic<int> jobs = 0;
  {
    const auto executor = env.new_executor(2);
    for (int i = 0; i < 100; ++i) {
      executor->submit([&] { ++jobs; });
    }
  }
  EXPECT_EQ(jobs, 100);
}

TEST_P(EnvConformance, ParallelRunsEveryTask) {
  const auto parallel = env.new_parallel(3);
  EXPECT_EQ(parallel->workers(), 3U);
  std::vector<int> runs(50, 0);
  parallel->run(runs.size(), [&](std::size_t task, std::size_t) { ++runs[task]; });
  EXPECT_EQ(runs, std::vector<int>(50, 1));
}

TEST_P(EnvConformance, KnowsItsMachine) {
  EXPECT_GE(env.hardware_threads(), 1U);
  EXPECT_GE(env.physical_memory_bytes(), std::uint64_t{64} << 20);
  EXPECT_GT(env.free_bytes(scratch.path()).value(), 0U);
  EXPECT_EQ(env.free_bytes(scratch.file("missing")).error().code, ErrorCode::not_found);
  EXPECT_TRUE(env.exists(env.temporary_directory()));
  EXPECT_NE(env.random(), env.random());
  const auto start = env.now();
  EXPECT_LE(start, env.now());
}

}  // namespace
}  // namespace headrace
