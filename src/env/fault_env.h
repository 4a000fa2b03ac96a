// FaultEnv: another Env, with chosen operations going wrong. A test that wants to try every
// operation runs once without a plan, reads count(), and then runs again with a fault at 1, 2, 3,
// ... up to that count.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "env/env.h"
#include "env/fault_plan.h"

namespace headrace {

/// Any thread. `base` must outlive this, and this all files that it gives out.
class FaultEnv final : public Env {
 public:
  explicit FaultEnv(Env& base) : base_(base) {}

  /// Replaces the plan and starts all counts anew. Files that are open follow the new plan.
  void set_plan(FaultPlan plan);

  /// Operations since set_plan(), including those that went wrong.
  std::uint64_t count(EnvOperation operation) const;

  /// Operations that went wrong since set_plan().
  std::uint64_t faults() const;

  /// Counts an operation and tells what shall go wrong with it. For the files of this Env.
  std::optional<Fault> next_fault(EnvOperation operation);

  Result<std::unique_ptr<File>> open_file(const std::string& path, OpenMode mode) override;
  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override;
  Result<std::string> read_file(const std::string& path) override;
  Result<void> remove_file(const std::string& path) override;
  Result<void> make_directories(const std::string& path) override;
  Result<void> remove_directory(const std::string& path) override;
  Result<std::vector<std::string>> list_directory(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  Result<std::uint64_t> free_bytes(const std::string& directory) override;
  Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) override;
  Result<ProgramOutput> run_program(const ProgramStart& start) override;

  // Never go wrong.
  bool exists(const std::string& path) override { return base_.exists(path); }
  std::string temporary_directory() override { return base_.temporary_directory(); }
  std::chrono::nanoseconds now() override { return base_.now(); }
  std::uint64_t unix_seconds() override { return base_.unix_seconds(); }
  std::uint64_t random() override { return base_.random(); }
  std::unique_ptr<Executor> new_executor(std::size_t threads) override {
    return base_.new_executor(threads);
  }
  /// Of the files' own operations, so that their faults happen.
  std::unique_ptr<IoQueue> new_io_queue(std::size_t depth) override;
  std::unique_ptr<Parallel> new_parallel(std::size_t workers) override {
    return base_.new_parallel(workers);
  }
  std::size_t hardware_threads() override { return base_.hardware_threads(); }
  std::uint64_t physical_memory_bytes() override { return base_.physical_memory_bytes(); }

 private:
  Env& base_;
  mutable std::mutex mutex_;
  FaultPlan plan_;            // guarded by mutex_
  OperationCounts counts_{};  // guarded by mutex_
  std::uint64_t faults_ = 0;  // guarded by mutex_
};

}  // namespace headrace
