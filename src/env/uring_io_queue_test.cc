// What every IoQueue over files of the system promises, and what is the ring's own.
#include "env/uring_io_queue.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/log.h"
#include "env/executor_io_queue.h"
#include "env/scratch_directory.h"

namespace headrace {
namespace {

constexpr std::size_t unit_bytes = 4096;  // of direct IO

std::unique_ptr<IoQueue> threads(std::size_t count) {
  return std::make_unique<ExecutorIoQueue>(posix_env().new_executor(count));
}

std::unique_ptr<IoQueue> ring(std::size_t depth, RingFiles files) {
  auto queue = new_uring_io_queue(depth, threads(1), files);
  return queue.ok() ? std::move(queue).value() : nullptr;
}

struct QueueCase {
  const char* name;
  std::size_t depth;
  std::function<std::unique_ptr<IoQueue>(std::size_t depth)> make;  // nullptr: no rings here
};

std::ostream& operator<<(std::ostream& out, const QueueCase& instance) {
  return out << instance.name << instance.depth;
}

std::vector<QueueCase> queue_cases() {
  std::vector<QueueCase> cases;
  for (const std::size_t depth : {1, 8, 64}) {
    cases.push_back({"Threads", depth, threads});
    cases.push_back({"Ring", depth, [](std::size_t size) { return ring(size, RingFiles::all); }});
    cases.push_back(
        {"RingForDirectIo", depth, [](std::size_t size) { return ring(size, RingFiles::direct); }});
    cases.push_back(
        {"OfTheEnv", depth, [](std::size_t size) { return posix_env().new_io_queue(size); }});
  }
  return cases;
}

class IoQueueConformance : public testing::TestWithParam<QueueCase> {
 protected:
  void SetUp() override {
    queue = GetParam().make(GetParam().depth);
    if (queue == nullptr) GTEST_SKIP() << "the system has no ring for us";
  }

  std::unique_ptr<File> create(const std::string& name) {
    return posix_env().open_file(scratch.file(name), OpenMode::create_new).value();
  }

  Result<void> finish(IoRequest::Kind kind, File& file, std::uint64_t offset, MutableBytes bytes) {
    std::optional<Result<void>> outcome;
    queue->submit({.kind = kind,
                   .file = &file,
                   .offset = offset,
                   .bytes = bytes,
                   .done = [&](Result<void> result) { outcome.emplace(std::move(result)); }});
    queue->wait_idle();
    return *outcome;
  }

  // Many requests at once, of random places that do not overlap within one round.
  void read_and_write_at_random(File& file) {
    constexpr std::size_t places = 96;
    constexpr std::size_t place_bytes = 4 * unit_bytes;
    std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
    AlignedBuffer memory = AlignedBuffer::allocate(places * place_bytes).value();
    std::vector<std::byte> copy(places * place_bytes);
    for (int round = 0; round < 8; ++round) {
      std::atomic<int> failures = 0;
      std::array<std::size_t, places> sizes{};
      std::array<bool, places> is_read{};
      for (std::size_t i = 0; i < places; ++i) {
        is_read[i] = round > 0 && random() % 2 == 0;
        sizes[i] = round == 0 ? place_bytes : (1 + random() % 4) * unit_bytes;
        const MutableBytes bytes = memory.span().subspan(i * place_bytes, sizes[i]);
        for (std::byte& each : bytes) each = static_cast<std::byte>(random());
        if (!is_read[i]) {
          std::ranges::copy(bytes, copy.begin() + static_cast<std::ptrdiff_t>(i * place_bytes));
        }
        queue->submit(
            {.kind = is_read[i] ? IoRequest::Kind::read : IoRequest::Kind::write,
             .file = &file,
             .offset = i * place_bytes,
             .bytes = bytes,
             .done = [&](const Result<void>& result) { failures += result.ok() ? 0 : 1; }});
      }
      queue->wait_idle();
      ASSERT_EQ(failures, 0);
      for (std::size_t i = 0; i < places; ++i) {
        if (!is_read[i]) continue;
        const MutableBytes bytes = memory.span().subspan(i * place_bytes, sizes[i]);
        ASSERT_TRUE(std::ranges::equal(bytes, Bytes(copy).subspan(i * place_bytes, sizes[i])));
      }
    }
    const MutableBytes all = memory.span();
    ASSERT_TRUE(file.read_at(0, std::span(&all, 1)).ok());
    EXPECT_TRUE(std::ranges::equal(all, copy));
  }

  ScratchDirectory scratch = ScratchDirectory::create(posix_env()).value();
  std::unique_ptr<IoQueue> queue;
};

INSTANTIATE_TEST_SUITE_P(, IoQueueConformance, testing::ValuesIn(queue_cases()),
                         [](const auto& instance) {
                           return instance.param.name + std::to_string(instance.param.depth);
                         });

TEST_P(IoQueueConformance, ReadsAndWritesManyAtATime) {
  const auto file = create("a");
  read_and_write_at_random(*file);
}

TEST_P(IoQueueConformance, ReadsAndWritesManyAtATimePastTheCache) {
  const auto file = create("a");
  if (!file->use_direct_io().ok()) GTEST_SKIP() << "the file system has no direct IO";
  read_and_write_at_random(*file);
}

TEST_P(IoQueueConformance, AFileThatEndsEarlyIsTheSameErrorAsWithoutAQueue) {
  const auto file = create("a");
  std::string text = "12345678";
  const MutableBytes bytes = std::as_writable_bytes(std::span(text));
  ASSERT_TRUE(finish(IoRequest::Kind::write, *file, 0, bytes).ok());
  std::string longer(10, '?');
  const MutableBytes target = std::as_writable_bytes(std::span(longer));
  for (const std::uint64_t offset : {5, 8, 100}) {
    const Error error = finish(IoRequest::Kind::read, *file, offset, target).error();
    const Error wanted = file->read_at(offset, std::span(&target, 1)).error();
    EXPECT_EQ(error.code, ErrorCode::corrupt);
    EXPECT_EQ(error.message, wanted.message);
  }
  EXPECT_EQ(longer.substr(0, 3), "678");
  EXPECT_TRUE(finish(IoRequest::Kind::read, *file, 100, target.first(0)).ok());
}

TEST_P(IoQueueConformance, WhatTheSystemRefusesIsTheSameErrorAsWithoutAQueue) {
  create("a");
  const auto file = posix_env().open_file(scratch.file("a"), OpenMode::read).value();
  std::string text = "text";
  const MutableBytes bytes = std::as_writable_bytes(std::span(text));
  const Error error = finish(IoRequest::Kind::write, *file, 0, bytes).error();
  EXPECT_EQ(error.code, ErrorCode::io);
  EXPECT_EQ(error.message, "cannot write '" + scratch.file("a") + "': Bad file descriptor");
  const auto full = posix_env().open_file("/dev/full", OpenMode::read_write).value();
  const Error is_full = finish(IoRequest::Kind::write, *full, 0, bytes).error();
  EXPECT_EQ(is_full.code, ErrorCode::out_of_budget);
  EXPECT_EQ(is_full.message, "cannot write '/dev/full': No space left on device");
}

TEST_P(IoQueueConformance, DestroyingItWaitsForWhatIsInFlight) {
  const auto file = create("a");
  std::vector<std::byte> memory(200 * unit_bytes, std::byte{7});
  std::atomic<int> ended = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    queue->submit({.kind = IoRequest::Kind::write,
                   .file = file.get(),
                   .offset = i * unit_bytes,
                   .bytes = MutableBytes(memory).subspan(i * unit_bytes, unit_bytes),
                   .done = [&](const Result<void>& result) { ended += result.ok() ? 1 : 0; }});
  }
  queue.reset();
  EXPECT_EQ(ended, 200);
  EXPECT_EQ(file->size().value(), memory.size());
}

TEST_P(IoQueueConformance, WhatEndsMaySubmitMore) {
  const auto file = create("a");
  std::vector<std::byte> memory(unit_bytes);
  std::function<void(int)> write = [&](int left) {
    queue->submit({.kind = IoRequest::Kind::write,
                   .file = file.get(),
                   .offset = static_cast<std::uint64_t>(left) * unit_bytes,
                   .bytes = memory,
                   .done = [&write, left](const Result<void>&) {
                     if (left > 0) write(left - 1);
                   }});
  };
  write(20);
  queue->wait_idle();
  EXPECT_EQ(file->size().value(), 21 * unit_bytes);
}

// A file that has no descriptor, or not a good one, and says itself what becomes of a read.
class OddFile final : public File {
 public:
  explicit OddFile(int descriptor) : descriptor_(descriptor) {}
  Result<void> read_at(std::uint64_t, std::span<const MutableBytes> parts) override {
    ++reads;
    if (descriptor_ >= 0) return Error{ErrorCode::io, "closed"};
    for (const MutableBytes part : parts) std::ranges::fill(part, std::byte{1});
    return {};
  }
  Result<void> write_at(std::uint64_t, std::span<const Bytes>) override { return {}; }
  Result<void> sync() override { return {}; }
  Result<std::uint64_t> size() const override { return std::uint64_t{0}; }
  Result<void> truncate(std::uint64_t) override { return {}; }
  void drop_cache() override {}
  Result<void> use_direct_io() override { return {}; }
  int descriptor() const override { return descriptor_; }

  std::atomic<int> reads = 0;

 private:
  const int descriptor_;
};

TEST_P(IoQueueConformance, AFileWithoutADescriptorReadsByItself) {
  OddFile file(-1);
  std::array<std::byte, 4> bytes{};
  EXPECT_TRUE(finish(IoRequest::Kind::read, file, 0, bytes).ok());
  EXPECT_EQ(bytes[3], std::byte{1});
  EXPECT_EQ(file.reads, 1);
}

TEST_P(IoQueueConformance, ADescriptorThatIsNotOpenIsAnError) {
  OddFile file(1'000'000);
  std::array<std::byte, 4> bytes{};
  EXPECT_EQ(finish(IoRequest::Kind::read, file, 0, bytes).error().code, ErrorCode::io);
}

// A file whose read_at() shall not be needed.
TEST(UringIoQueue, TheRingReadsWithoutTheFile) {
  const auto scratch = ScratchDirectory::create(posix_env()).value();
  const auto file = posix_env().open_file(scratch.file("a"), OpenMode::create_new).value();
  const std::string text = "text";
  const Bytes part = std::as_bytes(std::span(text));
  ASSERT_TRUE(file->write_at(0, std::span(&part, 1)).ok());
  OddFile odd(file->descriptor());
  std::string back(4, '?');
  for (const RingFiles files : {RingFiles::all, RingFiles::direct}) {
    odd.reads = 0;
    auto queue = ring(8, files);
    if (queue == nullptr) GTEST_SKIP() << "the system has no ring for us";
    queue->submit({.kind = IoRequest::Kind::read,
                   .file = &odd,
                   .offset = 0,
                   .bytes = std::as_writable_bytes(std::span(back)),
                   .done = [](const Result<void>&) {}});
    queue.reset();
    EXPECT_EQ(odd.reads, files == RingFiles::all ? 0 : 1);
  }
  EXPECT_EQ(back, "text");
}

// From now on the system refuses rings to this thread and those it starts. False: not possible.
bool refuse_rings(int reason) {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(reason)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(UringIoQueue, WhereTheSystemRefusesRingsThreadsReadInstead) {
  const auto scratch = ScratchDirectory::create(posix_env()).value();
  const auto file = posix_env().open_file(scratch.file("a"), OpenMode::create_new).value();
  for (const int reason : {ENOSYS, EPERM, ENOMEM}) {
    bool is_possible = false;
    std::optional<Error> refusal;
    std::optional<Result<void>> outcome;
    std::string log;
    std::thread([&] {
      is_possible = refuse_rings(reason);
      if (!is_possible) return;
      auto direct = new_uring_io_queue(8, threads(1), RingFiles::all);
      if (!direct.ok()) refusal = direct.error();
      const LogLevel before = log_level();
      set_log_level(LogLevel::info);
      testing::internal::CaptureStderr();
      auto queue = posix_env().new_io_queue(8);
      log = testing::internal::GetCapturedStderr();
      set_log_level(before);
      std::array<std::byte, 4> bytes{};
      queue->submit({.kind = IoRequest::Kind::write,
                     .file = file.get(),
                     .offset = 0,
                     .bytes = bytes,
                     .done = [&](Result<void> result) { outcome.emplace(std::move(result)); }});
      queue.reset();
    }).join();
    if (!is_possible) GTEST_SKIP() << "the system has no filters for us";
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->code, ErrorCode::unsupported);
    EXPECT_EQ(log, "headrace: info: " + refusal->message + "; threads read and write instead\n");
    ASSERT_TRUE(outcome.has_value());
    EXPECT_TRUE(outcome->ok());
  }
}

}  // namespace
}  // namespace headrace
