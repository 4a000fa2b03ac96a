#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "env/env.h"
#include "env/executor_io_queue.h"
#include "env/posix_error.h"
#include "env/posix_file.h"
#include "env/posix_program.h"
#include "env/thread_executor.h"
#include "env/thread_pool.h"
#include "env/uring_io_queue.h"

namespace headrace {
namespace {

bool is_directory(const std::string& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

class PosixEnv final : public Env {
 public:
  Result<std::unique_ptr<File>> open_file(const std::string& path, OpenMode mode) override {
    return open_posix_file(path, mode);
  }
  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override {
    return map_posix_file(path);
  }
  Result<std::string> read_file(const std::string& path) override { return read_posix_file(path); }

  Result<void> remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return posix_error("remove", path, errno);
    return {};
  }

  Result<void> make_directories(const std::string& path) override {
    if (is_directory(path)) return {};
    const std::string parent = path.substr(0, path.find_last_of('/') + 1);
    const std::size_t parent_end = parent.find_last_not_of('/');
    if (parent_end != std::string::npos) {
      HEADRACE_TRY(make_directories(parent.substr(0, parent_end + 1)));
    }
    if (::mkdir(path.c_str(), 0700) == 0) return {};
    // Someone else may have made it since we looked; "a/b/" is also complete once its "a/b" is.
    const int reason = errno;
    if (reason == EEXIST && is_directory(path)) return {};
    return posix_error("make directory", path, reason);
  }

  Result<void> remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) return posix_error("remove directory", path, errno);
    return {};
  }

  Result<std::vector<std::string>> list_directory(const std::string& path) override {
    std::error_code reason;
    std::vector<std::string> names;
    std::filesystem::directory_iterator entry(path, reason);
    for (; !reason && entry != std::filesystem::directory_iterator(); entry.increment(reason)) {
      names.push_back(entry->path().filename().string());
    }
    if (reason) return posix_error("list directory", path, reason.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> sync_directory(const std::string& path) override {
    return sync_posix_directory(path);
  }

  bool exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }

  Result<std::uint64_t> free_bytes(const std::string& directory) override {
    struct statvfs facts{};
    if (::statvfs(directory.c_str(), &facts) != 0) {
      return posix_error("measure the free space of", directory, errno);
    }
    return static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
  }

  Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return lock_posix_file(path);
  }

  std::string temporary_directory() override {
    std::error_code reason;
    const std::filesystem::path directory = std::filesystem::temp_directory_path(reason);
    return reason ? "/tmp" : directory.string();
  }

  Result<ProgramOutput> run_program(const ProgramStart& start) override {
    return run_posix_program(start);
  }

  std::uint64_t unix_seconds() override {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(since_1970).count());
  }
  std::chrono::nanoseconds now() override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }

  std::uint64_t random() override {
    std::uint64_t value = 0;
    HEADRACE_CHECK(::getentropy(&value, sizeof(value)) == 0, "the system has randomness to give");
    return value;
  }

  std::unique_ptr<Executor> new_executor(std::size_t threads) override {
    return std::make_unique<ThreadExecutor>(threads);
  }
  std::unique_ptr<IoQueue> new_io_queue(std::size_t depth) override {
    const auto threads = [&] {
      // A read waits for the device most of the time, so more threads than processors make sense.
      constexpr std::size_t threads_max = 8;
      return std::make_unique<ExecutorIoQueue>(new_executor(std::min(depth, threads_max)));
    };
    // Of 200 KiB each, 8 to 32 at a time: past the cache the ring takes a third to a half less time
    // of the processor. What is in the cache it would copy on one thread.
    auto ring = new_uring_io_queue(depth, threads(), RingFiles::direct);
    if (ring.ok()) return std::move(ring).value();
    log_message(LogLevel::info, ring.error().message + "; threads read and write instead");
    return threads();
  }
  std::unique_ptr<Parallel> new_parallel(std::size_t workers) override {
    return std::make_unique<ThreadPool>(workers);
  }
  std::size_t hardware_threads() override {
    return std::max(1U, std::thread::hardware_concurrency());
  }
  std::uint64_t physical_memory_bytes() override {
    return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
  }
};

}  // namespace

Env& posix_env() {
  // Never destroyed, so that objects with static lifetime may use it until the very end.
  static PosixEnv* const env = new PosixEnv();
  return *env;
}

}  // namespace headrace
