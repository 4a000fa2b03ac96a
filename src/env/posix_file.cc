#include "env/posix_file.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <filesystem>

#include "env/file_descriptor.h"
#include "env/io_cursor.h"
#include "env/posix_error.h"

namespace headrace {
namespace {

class PosixFile final : public File {
 public:
  PosixFile(FileDescriptor descriptor, std::string path, bool is_new)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), name_is_volatile_(is_new) {}

  Result<void> read_at(std::uint64_t offset, std::span<const MutableBytes> parts) override {
    IoCursor<MutableBytes> cursor(parts);
    while (cursor.remaining_bytes() > 0) {
      const auto batch = cursor.next_batch();
      const ssize_t moved = ::preadv(descriptor_.number(), batch.data(),
                                     static_cast<int>(batch.size()), static_cast<off_t>(offset));
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0) return posix_error("read", path_, errno);
      if (moved == 0) return ends_early(offset, cursor.remaining_bytes());
      cursor.advance(static_cast<std::size_t>(moved));
      offset += static_cast<std::uint64_t>(moved);
    }
    return {};
  }

  Result<void> write_at(std::uint64_t offset, std::span<const Bytes> parts) override {
    IoCursor<Bytes> cursor(parts);
    while (cursor.remaining_bytes() > 0) {
      const auto batch = cursor.next_batch();
      const ssize_t moved = ::pwritev(descriptor_.number(), batch.data(),
                                      static_cast<int>(batch.size()), static_cast<off_t>(offset));
      if (moved < 0 && errno == EINTR) continue;
      // A device that takes nothing and gives no reason would keep us here for ever.
      if (moved <= 0) return posix_error("write", path_, moved < 0 ? errno : EIO);
      cursor.advance(static_cast<std::size_t>(moved));
      offset += static_cast<std::uint64_t>(moved);
    }
    return {};
  }

  Result<void> sync() override {
    if (::fdatasync(descriptor_.number()) != 0) return posix_error("sync", path_, errno);
    // The name of a new file lives in its directory, which has to be durable as well.
    if (name_is_volatile_.load()) {
      HEADRACE_TRY(sync_directory());
      name_is_volatile_.store(false);
    }
    return {};
  }

  Result<std::uint64_t> size() const override {
    struct stat facts{};
    if (::fstat(descriptor_.number(), &facts) != 0) return posix_error("stat", path_, errno);
    return static_cast<std::uint64_t>(facts.st_size);
  }

  Result<void> truncate(std::uint64_t size) override {
    int status = 0;
    do {
      status = ::ftruncate(descriptor_.number(), static_cast<off_t>(size));
    } while (status != 0 && errno == EINTR);
    if (status != 0) return posix_error("truncate", path_, errno);
    return {};
  }

  Result<void> use_direct_io() override {
    const int flags = ::fcntl(descriptor_.number(), F_GETFL);
    if (flags < 0) return posix_error("open", path_, errno);
    if (::fcntl(descriptor_.number(), F_SETFL, flags | O_DIRECT) == 0) return {};
    return Error{ErrorCode::unsupported, posix_error("use direct IO on", path_, errno).message};
  }

  int descriptor() const override { return descriptor_.number(); }

  void drop_cache() override {
    // A hint: where it is refused, reads are merely faster than asked for.
    static_cast<void>(::posix_fadvise(descriptor_.number(), 0, 0, POSIX_FADV_DONTNEED));
  }

 private:
  Error ends_early(std::uint64_t offset, std::uint64_t missing) const {
    return {ErrorCode::corrupt, "'" + path_ + "' ends early: at byte " + std::to_string(offset) +
                                    ", " + std::to_string(missing) + " bytes are missing"};
  }

  Result<void> sync_directory() const {
    const std::string parent = std::filesystem::path(path_).parent_path().string();
    return sync_posix_directory(parent.empty() ? "." : parent);
  }

  const FileDescriptor descriptor_;
  const std::string path_;
  std::atomic<bool> name_is_volatile_;
};

class PosixMapping final : public MappedFile {
 public:
  PosixMapping(void* memory, std::size_t size) : memory_(memory), size_(size) {}
  PosixMapping(const PosixMapping&) = delete;
  PosixMapping& operator=(const PosixMapping&) = delete;
  ~PosixMapping() override { ::munmap(memory_, size_); }
  Bytes bytes() const override { return {static_cast<const std::byte*>(memory_), size_}; }

 private:
  void* memory_;
  std::size_t size_;
};

// The claim belongs to the open file description: closing it gives the claim up, also when the
// process dies.
class PosixLock final : public FileLock {
 public:
  explicit PosixLock(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  FileDescriptor descriptor_;
};

int open_flags(OpenMode mode) {
  switch (mode) {
    case OpenMode::read:
      return O_RDONLY;
    case OpenMode::read_write:
      return O_RDWR;
    case OpenMode::create_new:
      return O_RDWR | O_CREAT | O_EXCL;
  }
  return O_RDONLY;
}

}  // namespace

Result<void> sync_posix_directory(const std::string& path) {
  const FileDescriptor opened = open_descriptor(path, O_RDONLY | O_DIRECTORY);
  if (!opened.valid()) return posix_error("open", path, errno);
  if (::fsync(opened.number()) != 0) return posix_error("sync", path, errno);
  return {};
}

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, OpenMode mode) {
  FileDescriptor descriptor = open_descriptor(path, open_flags(mode));
  const bool is_new = mode == OpenMode::create_new;
  if (!descriptor.valid()) return posix_error(is_new ? "create" : "open", path, errno);
  return std::unique_ptr<File>(std::make_unique<PosixFile>(std::move(descriptor), path, is_new));
}

Result<std::unique_ptr<MappedFile>> map_posix_file(const std::string& path) {
  const FileDescriptor descriptor = open_descriptor(path, O_RDONLY);
  if (!descriptor.valid()) return posix_error("open", path, errno);
  struct stat facts{};
  if (::fstat(descriptor.number(), &facts) != 0) return posix_error("stat", path, errno);
  if (!S_ISREG(facts.st_mode)) return Error{ErrorCode::io, "'" + path + "' is not a regular file"};
  if (facts.st_size == 0) return Error{ErrorCode::corrupt, "'" + path + "' is empty"};
  const auto size = static_cast<std::size_t>(facts.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.number(), 0);
  if (memory == MAP_FAILED) return posix_error("map", path, errno);
  return std::unique_ptr<MappedFile>(std::make_unique<PosixMapping>(memory, size));
}

Result<std::string> read_posix_file(const std::string& path) {
  const FileDescriptor descriptor = open_descriptor(path, O_RDONLY);
  if (!descriptor.valid()) return posix_error("open", path, errno);
  // To the end rather than to the size that stat gives: pipes and /proc have none.
  std::string text;
  std::array<char, 65536> chunk;
  for (;;) {
    const ssize_t moved = ::read(descriptor.number(), chunk.data(), chunk.size());
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return posix_error("read", path, errno);
    if (moved == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(moved));
  }
}

namespace {

/// Whether `path` still names the open file. The one who held the lock before may have removed it.
bool names_file(const std::string& path, int descriptor) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

Result<std::unique_ptr<FileLock>> lock_posix_file(const std::string& path) {
  while (true) {
    FileDescriptor descriptor = open_descriptor(path, O_RDWR | O_CREAT);
    if (!descriptor.valid()) return posix_error("open", path, errno);
    int status = 0;
    do {
      status = ::flock(descriptor.number(), LOCK_EX | LOCK_NB);
    } while (status != 0 && errno == EINTR);
    if (status != 0 && errno == EWOULDBLOCK) {
      return Error{ErrorCode::io, "'" + path + "' is held by someone else"};
    }
    if (status != 0) return posix_error("lock", path, errno);
    // A lock on a file without a name would keep nobody out: try again with the one that has it.
    if (!names_file(path, descriptor.number())) continue;
    return std::unique_ptr<FileLock>(std::make_unique<PosixLock>(std::move(descriptor)));
  }
}

}  // namespace headrace
