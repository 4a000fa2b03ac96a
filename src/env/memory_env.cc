#include "env/memory_env.h"

#include <cerrno>

#include "env/executor_io_queue.h"
#include "env/memory_file.h"
#include "env/posix_error.h"
#include "env/thread_executor.h"
#include "env/thread_pool.h"

namespace headrace {
namespace {

constexpr const char* kTemporaryDirectory = "/tmp";

}  // namespace

MemoryEnv::MemoryEnv(const MemoryEnvOptions& options)
    : executors_(options.executors),
      disk_(options.capacity_bytes, kTemporaryDirectory),
      random_state_(options.seed) {}

void MemoryEnv::advance(std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  clock_ += time;
}

std::size_t MemoryEnv::run_pending() {
  std::size_t jobs = 0;
  while (queue_.run_next(nullptr)) ++jobs;
  return jobs;
}

Result<std::unique_ptr<File>> MemoryEnv::open_file(const std::string& path, OpenMode mode) {
  return disk_.open(path, mode);
}

Result<std::unique_ptr<MappedFile>> MemoryEnv::map_file(const std::string& path) {
  HEADRACE_TRY_ASSIGN(std::string contents, disk_.read_all(path));
  if (contents.empty()) return Error{ErrorCode::corrupt, "'" + path + "' is empty"};
  return std::unique_ptr<MappedFile>(std::make_unique<MemoryMapping>(std::move(contents)));
}

Result<std::string> MemoryEnv::read_file(const std::string& path) { return disk_.read_all(path); }

Result<void> MemoryEnv::remove_file(const std::string& path) { return disk_.remove_file(path); }

Result<void> MemoryEnv::make_directories(const std::string& path) {
  return disk_.make_directories(path);
}

Result<void> MemoryEnv::remove_directory(const std::string& path) {
  return disk_.remove_directory(path);
}

Result<std::vector<std::string>> MemoryEnv::list_directory(const std::string& path) {
  return disk_.list(path);
}

Result<void> MemoryEnv::sync_directory(const std::string& path) {
  return disk_.sync_directory(path);
}

bool MemoryEnv::exists(const std::string& path) { return disk_.exists(path); }

Result<std::uint64_t> MemoryEnv::free_bytes(const std::string& directory) {
  return disk_.free_bytes(directory);
}

Result<std::unique_ptr<FileLock>> MemoryEnv::lock_file(const std::string& path) {
  return disk_.lock(path);
}

std::string MemoryEnv::temporary_directory() { return kTemporaryDirectory; }

Result<ProgramOutput> MemoryEnv::run_program(const ProgramStart& start) {
  if (programs_) return programs_(start);
  return posix_error("run", start.arguments.front(), ENOENT);
}

std::chrono::nanoseconds MemoryEnv::now() {
  const std::lock_guard lock(mutex_);
  return clock_;
}

std::uint64_t MemoryEnv::unix_seconds() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(now()).count());
}

std::uint64_t MemoryEnv::random() {
  const std::lock_guard lock(mutex_);
  // SplitMix64: well spread from any seed, also from 0.
  std::uint64_t value = random_state_ += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

std::unique_ptr<Executor> MemoryEnv::new_executor(std::size_t threads) {
  if (executors_ == ExecutorKind::manual) return std::make_unique<ManualExecutor>(queue_);
  return std::make_unique<ThreadExecutor>(threads);
}

std::unique_ptr<IoQueue> MemoryEnv::new_io_queue(std::size_t depth) {
  return std::make_unique<ExecutorIoQueue>(new_executor(depth));
}

std::unique_ptr<Parallel> MemoryEnv::new_parallel(std::size_t workers) {
  return std::make_unique<ThreadPool>(workers);
}

}  // namespace headrace
