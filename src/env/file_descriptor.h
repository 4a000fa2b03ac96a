// FileDescriptor: closes what it holds.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace headrace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() { close(); }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  bool valid() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

/// Opens with O_CLOEXEC; what is created belongs to this user alone. Invalid on failure, with the
/// reason in errno.
inline FileDescriptor open_descriptor(const std::string& path, int flags) {
  int number = -1;
  do {
    number = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  } while (number < 0 && errno == EINTR);
  return FileDescriptor(number);
}

}  // namespace headrace
