// A world in memory without threads: what is given to an executor runs at once, on the calling
// thread. Quick, and the k-th operation is the same one in every run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "env/executor_io_queue.h"
#include "env/memory_env.h"

namespace headrace {

/// Jobs that wait although nothing else is to be waited for.
struct HeldJobs {
  bool is_holding = false;
  std::vector<std::function<void()>> jobs = {};
};

class ImmediateExecutor final : public Executor {
 public:
  explicit ImmediateExecutor(HeldJobs& held) : held_(held) {}
  void submit(std::function<void()> job) override {
    if (!held_.is_holding) return job();
    held_.jobs.push_back(std::move(job));
  }

 private:
  HeldJobs& held_;
};

class ImmediateEnv final : public Env {
 public:
  void crash() { base_.crash(); }
  void advance(std::chrono::nanoseconds time) { base_.advance(time); }
  void crash_torn(std::uint64_t seed) { base_.crash_torn(seed); }
  void set_capacity(std::uint64_t bytes) { base_.set_capacity(bytes); }
  /// As if every thread were busy with something else, until run_held_jobs().
  void hold_jobs() { held_.is_holding = true; }
  void run_held_jobs() {
    held_.is_holding = false;
    for (const auto& job : std::exchange(held_.jobs, {})) job();
  }

  Result<std::unique_ptr<File>> open_file(const std::string& path, OpenMode mode) override {
    return base_.open_file(path, mode);
  }
  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override {
    return base_.map_file(path);
  }
  Result<std::string> read_file(const std::string& path) override { return base_.read_file(path); }
  Result<void> remove_file(const std::string& path) override { return base_.remove_file(path); }
  Result<void> make_directories(const std::string& path) override {
    return base_.make_directories(path);
  }
  Result<void> remove_directory(const std::string& path) override {
    return base_.remove_directory(path);
  }
  Result<std::vector<std::string>> list_directory(const std::string& path) override {
    return base_.list_directory(path);
  }
  Result<void> sync_directory(const std::string& path) override {
    return base_.sync_directory(path);
  }
  bool exists(const std::string& path) override { return base_.exists(path); }
  Result<std::uint64_t> free_bytes(const std::string& directory) override {
    return base_.free_bytes(directory);
  }
  Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return base_.lock_file(path);
  }
  std::string temporary_directory() override { return base_.temporary_directory(); }
  Result<ProgramOutput> run_program(const ProgramStart& start) override {
    return base_.run_program(start);
  }
  std::chrono::nanoseconds now() override { return base_.now(); }
  std::uint64_t unix_seconds() override { return base_.unix_seconds(); }
  std::uint64_t random() override { return base_.random(); }
  std::unique_ptr<Executor> new_executor(std::size_t) override {
    return std::make_unique<ImmediateExecutor>(held_);
  }
  std::unique_ptr<IoQueue> new_io_queue(std::size_t) override {
    return std::make_unique<ExecutorIoQueue>(std::make_unique<ImmediateExecutor>(held_));
  }
  std::unique_ptr<Parallel> new_parallel(std::size_t workers) override {
    return base_.new_parallel(workers);
  }
  std::size_t hardware_threads() override { return base_.hardware_threads(); }
  std::uint64_t physical_memory_bytes() override { return base_.physical_memory_bytes(); }

 private:
  MemoryEnv base_;
  HeldJobs held_;
};

}  // namespace headrace
