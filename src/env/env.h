// Env: the only door to the world (invariant 7): files, clock, threads, programs, randomness. Code
// outside this folder opens no file, starts no thread or program and reads no clock, so every
// fault, crash and schedule can be a seeded unit test.
//
// Implementations: posix_env() (the real one), MemoryEnv (files in memory), FaultEnv (wraps another
// Env and makes chosen operations fail or damage data).
//
// Thread-safety: an Env and its files may be used from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/parallel.h"
#include "headrace/result.h"

namespace headrace {

/// How a file is opened.
enum class OpenMode {
  read,        ///< must exist
  read_write,  ///< must exist
  create_new,  ///< must not exist; read and write; mode 0600
};

/// An open file with positional access. Closed when destroyed.
class File {
 public:
  virtual ~File() = default;

  /// Fills all `parts` in order from `offset`. A file that ends earlier is an error: corrupt, with
  /// what was missing. Interrupted and short reads are continued. Errors: io, corrupt.
  virtual Result<void> read_at(std::uint64_t offset, std::span<const MutableBytes> parts) = 0;

  /// Writes all `parts` in order at `offset`, extending the file where needed.
  /// After an error any part of them may have been written.
  /// Errors: out_of_budget (no space left on device), io.
  virtual Result<void> write_at(std::uint64_t offset, std::span<const Bytes> parts) = 0;

  /// Makes everything written durable, and the name of a file that create_new made. After an error
  /// nothing about earlier writes is known. Errors: io, out_of_budget.
  virtual Result<void> sync() = 0;

  virtual Result<std::uint64_t> size() const = 0;
  virtual Result<void> truncate(std::uint64_t size) = 0;

  /// Asks the system to forget its cached copy of the file, so that the next read comes from the
  /// device. A hint.
  virtual void drop_cache() = 0;

  /// From now on reads and writes go past the system's cache; memory, offsets and lengths must be
  /// multiples of 4096 then. Errors: unsupported (this file system cannot), io.
  virtual Result<void> use_direct_io() = 0;

  /// Of the operating system, for an IoQueue; -1: has none.
  virtual int descriptor() const { return -1; }
};

/// A file mapped read-only into memory. Unmapped when destroyed.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual Bytes bytes() const = 0;
};

/// An exclusive claim on a path, held until destroyed (also given up when the process dies).
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// Runs jobs on threads of its own, first come first served. Destroying it waits for the jobs
/// submitted so far.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(std::function<void()> job) = 0;
  /// Waits until no job is queued or running; runs them where no thread does. Not for jobs.
  virtual void wait_idle() {}
};

/// One read or write of a whole range.
struct IoRequest {
  enum class Kind { read, write };
  Kind kind = Kind::read;
  File* file = nullptr;  ///< must be open until `done` has been called
  std::uint64_t offset = 0;
  MutableBytes bytes;  ///< a write only reads them
  /// Called once, on any thread, with what File::read_at() or write_at() would have returned.
  std::function<void(Result<void>)> done;
};

/// Reads and writes, many at a time. Destroying it waits for those in flight.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual void submit(IoRequest request) = 0;
  /// As Executor::wait_idle().
  virtual void wait_idle() = 0;
};

/// Another program to run, and what ends it early.
struct ProgramStart {
  /// The program's file and its arguments. Looked up in PATH unless the file has a slash.
  std::vector<std::string> arguments;
  /// Asked several times a second; once it says true the program is told to end. Optional.
  std::function<bool()> is_cancelled = {};
};

/// What a program left behind.
struct ProgramOutput {
  int exit_code = 0;                 ///< 128 + signal where a signal ended it
  std::string out = {};              ///< standard output
  std::string err = {};              ///< the last 4 KiB of standard error
  std::uint64_t peak_rss_bytes = 0;  ///< of its memory; 0: not known
};

class Env {
 public:
  virtual ~Env() = default;

  // Files. Paths are UTF-8. Messages name the path and the system's reason.
  virtual Result<std::unique_ptr<File>> open_file(const std::string& path, OpenMode mode) = 0;
  /// Wants a regular file that is not empty. Errors: not_found, corrupt (empty), io.
  virtual Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) = 0;
  /// The whole file. Errors: not_found, io.
  virtual Result<std::string> read_file(const std::string& path) = 0;
  virtual Result<void> remove_file(const std::string& path) = 0;
  /// With all parents. Fine if it exists; mode 0700 where made.
  virtual Result<void> make_directories(const std::string& path) = 0;
  /// Only an empty one.
  virtual Result<void> remove_directory(const std::string& path) = 0;
  /// The names in it, sorted.
  virtual Result<std::vector<std::string>> list_directory(const std::string& path) = 0;
  /// Makes the names in it durable: that files are there, and that removed ones are not.
  virtual Result<void> sync_directory(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  /// Available to this user.
  virtual Result<std::uint64_t> free_bytes(const std::string& directory) = 0;
  /// Claims `path` (created if missing, not removed) for this process. Errors: io when someone else
  /// holds it.
  virtual Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) = 0;
  virtual std::string temporary_directory() = 0;

  // Programs.
  /// Runs a program to its end, without a shell and with nothing on its standard input. One that
  /// fails is no error: its exit code says so. Errors: not_found, io, cancelled.
  virtual Result<ProgramOutput> run_program(const ProgramStart& start) = 0;

  // Time. Monotonic, for measuring and for time limits.
  virtual std::chrono::nanoseconds now() = 0;

  /// Of the calendar, since 1970: for people to read.
  virtual std::uint64_t unix_seconds() = 0;

  // Randomness, for names and seeds.
  virtual std::uint64_t random() = 0;

  // Threads.
  virtual std::unique_ptr<Executor> new_executor(std::size_t threads) = 0;
  /// At most `depth` operations at a time reach the device.
  virtual std::unique_ptr<IoQueue> new_io_queue(std::size_t depth) = 0;
  /// `workers` >= 1 includes the calling thread.
  virtual std::unique_ptr<Parallel> new_parallel(std::size_t workers) = 0;
  virtual std::size_t hardware_threads() = 0;
  virtual std::uint64_t physical_memory_bytes() = 0;
};

/// The real world. Lives for the whole process.
Env& posix_env();

}  // namespace headrace
