// MemoryEnv: a world for tests. Files live in memory, the clock moves only when told to, randomness
// follows a seed, and background jobs run on threads or, if the test wants to choose the schedule,
// when it says so.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "env/env.h"
#include "env/manual_executor.h"
#include "env/memory_disk.h"

namespace headrace {

enum class ExecutorKind {
  threads,  ///< real threads
  manual,   ///< jobs wait for run_pending()
};

struct MemoryEnvOptions {
  std::uint64_t seed = 1;
  std::uint64_t capacity_bytes = std::numeric_limits<std::uint64_t>::max();
  ExecutorKind executors = ExecutorKind::threads;
};

/// Any thread. Must outlive everything it gives out. Threads of new_parallel() are real.
class MemoryEnv final : public Env {
 public:
  explicit MemoryEnv(const MemoryEnvOptions& options);
  MemoryEnv() : MemoryEnv(MemoryEnvOptions()) {}

  /// Moves the clock, which starts at zero.
  void advance(std::chrono::nanoseconds time);

  /// From now on writes beyond `bytes` in all files fail with out_of_budget, like those to a full
  /// disk.
  void set_capacity(std::uint64_t bytes) { disk_.set_capacity(bytes); }

  /// What run_program() does from now on; without it there are no programs.
  void set_programs(std::function<Result<ProgramOutput>(const ProgramStart&)> programs) {
    programs_ = std::move(programs);
  }

  /// The machine stops and starts again: unsynced bytes are gone, open files are dead, locks are
  /// free. See MemoryDisk. Clock, randomness and waiting jobs are left alone.
  void crash() { disk_.crash(); }
  /// The same, and each sector of 512 bytes that was not synced reached the disk or did not.
  void crash_torn(std::uint64_t seed) { disk_.crash_torn(seed); }

  /// With ExecutorKind::manual: runs the waiting jobs, and those that they submit, on this thread
  /// in order of submission. Returns how many ran.
  std::size_t run_pending();
  /// The same for one job. False when none waits.
  bool run_next() { return queue_.run_next(nullptr); }

  Result<std::unique_ptr<File>> open_file(const std::string& path, OpenMode mode) override;
  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override;
  Result<std::string> read_file(const std::string& path) override;
  Result<void> remove_file(const std::string& path) override;
  Result<void> make_directories(const std::string& path) override;
  Result<void> remove_directory(const std::string& path) override;
  Result<std::vector<std::string>> list_directory(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  bool exists(const std::string& path) override;
  Result<std::uint64_t> free_bytes(const std::string& directory) override;
  Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) override;
  std::string temporary_directory() override;
  Result<ProgramOutput> run_program(const ProgramStart& start) override;
  std::chrono::nanoseconds now() override;
  std::uint64_t unix_seconds() override;
  std::uint64_t random() override;
  std::unique_ptr<Executor> new_executor(std::size_t threads) override;
  std::unique_ptr<IoQueue> new_io_queue(std::size_t depth) override;
  std::unique_ptr<Parallel> new_parallel(std::size_t workers) override;
  std::size_t hardware_threads() override { return 2; }
  std::uint64_t physical_memory_bytes() override { return std::uint64_t{8} << 30; }

 private:
  const ExecutorKind executors_;
  MemoryDisk disk_;
  ManualQueue queue_;
  std::function<Result<ProgramOutput>(const ProgramStart&)> programs_;
  std::mutex mutex_;
  std::chrono::nanoseconds clock_{0};  // guarded by mutex_
  std::uint64_t random_state_;         // guarded by mutex_
};

}  // namespace headrace
