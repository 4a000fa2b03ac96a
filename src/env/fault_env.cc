#include "env/fault_env.h"

#include <utility>

#include "base/check.h"
#include "env/executor_io_queue.h"
#include "env/fault_file.h"
#include "env/memory_file.h"

namespace headrace {
namespace {

std::size_t slot(EnvOperation operation) { return static_cast<std::size_t>(operation); }

}  // namespace

void FaultEnv::set_plan(FaultPlan plan) {
  for (const Fault& fault : plan) {
    HEADRACE_CHECK(fault.at > 0, "the first operation has number 1");
    HEADRACE_CHECK(is_possible(fault.kind, fault.operation), "this can happen to the operation");
  }
  const std::lock_guard lock(mutex_);
  plan_ = std::move(plan);
  counts_ = {};
  faults_ = 0;
}

std::uint64_t FaultEnv::count(EnvOperation operation) const {
  const std::lock_guard lock(mutex_);
  return counts_[slot(operation)];
}

std::uint64_t FaultEnv::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

std::optional<Fault> FaultEnv::next_fault(EnvOperation operation) {
  const std::lock_guard lock(mutex_);
  ++counts_[slot(operation)];
  ++counts_[slot(EnvOperation::any)];
  for (const Fault& fault : plan_) {
    const bool concerned = fault.operation == operation || fault.operation == EnvOperation::any;
    const std::uint64_t number = counts_[slot(fault.operation)];
    if (concerned && (number == fault.at || (fault.lasting && number > fault.at))) {
      ++faults_;
      return fault;
    }
  }
  return std::nullopt;
}

Result<std::unique_ptr<File>> FaultEnv::open_file(const std::string& path, OpenMode mode) {
  const auto fault = next_fault(EnvOperation::open);
  if (fault) return injected_error(*fault, EnvOperation::open, path);
  HEADRACE_TRY_ASSIGN(auto file, base_.open_file(path, mode));
  return std::unique_ptr<File>(std::make_unique<FaultFile>(*this, std::move(file), path));
}

Result<std::unique_ptr<MappedFile>> FaultEnv::map_file(const std::string& path) {
  const auto fault = next_fault(EnvOperation::map);
  if (!fault) return base_.map_file(path);
  if (fault->kind == FaultKind::fail) return injected_error(*fault, EnvOperation::map, path);
  HEADRACE_TRY_ASSIGN(std::string contents, base_.read_file(path));
  damage(*fault, contents);
  return std::unique_ptr<MappedFile>(std::make_unique<MemoryMapping>(std::move(contents)));
}

Result<std::string> FaultEnv::read_file(const std::string& path) {
  const auto fault = next_fault(EnvOperation::read_file);
  if (!fault) return base_.read_file(path);
  if (fault->kind == FaultKind::fail) return injected_error(*fault, EnvOperation::read_file, path);
  HEADRACE_TRY_ASSIGN(std::string contents, base_.read_file(path));
  damage(*fault, contents);
  return contents;
}

Result<void> FaultEnv::remove_file(const std::string& path) {
  const auto fault = next_fault(EnvOperation::remove);
  if (fault) return injected_error(*fault, EnvOperation::remove, path);
  return base_.remove_file(path);
}

Result<void> FaultEnv::make_directories(const std::string& path) {
  const auto fault = next_fault(EnvOperation::make_directories);
  if (fault) return injected_error(*fault, EnvOperation::make_directories, path);
  return base_.make_directories(path);
}

Result<void> FaultEnv::remove_directory(const std::string& path) {
  const auto fault = next_fault(EnvOperation::remove);
  if (fault) return injected_error(*fault, EnvOperation::remove, path);
  return base_.remove_directory(path);
}

Result<std::vector<std::string>> FaultEnv::list_directory(const std::string& path) {
  const auto fault = next_fault(EnvOperation::list_directory);
  if (fault) return injected_error(*fault, EnvOperation::list_directory, path);
  return base_.list_directory(path);
}

Result<void> FaultEnv::sync_directory(const std::string& path) {
  const auto fault = next_fault(EnvOperation::sync);
  if (fault) return injected_error(*fault, EnvOperation::sync, path);
  return base_.sync_directory(path);
}

std::unique_ptr<IoQueue> FaultEnv::new_io_queue(std::size_t depth) {
  return std::make_unique<ExecutorIoQueue>(base_.new_executor(depth));
}

Result<std::uint64_t> FaultEnv::free_bytes(const std::string& directory) {
  const auto fault = next_fault(EnvOperation::free_bytes);
  if (fault) return injected_error(*fault, EnvOperation::free_bytes, directory);
  return base_.free_bytes(directory);
}

Result<std::unique_ptr<FileLock>> FaultEnv::lock_file(const std::string& path) {
  const auto fault = next_fault(EnvOperation::lock);
  if (fault) return injected_error(*fault, EnvOperation::lock, path);
  return base_.lock_file(path);
}

Result<ProgramOutput> FaultEnv::run_program(const ProgramStart& start) {
  const auto fault = next_fault(EnvOperation::run_program);
  if (fault) return injected_error(*fault, EnvOperation::run_program, start.arguments.front());
  return base_.run_program(start);
}

}  // namespace headrace
