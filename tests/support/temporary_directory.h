// TemporaryDirectory: a directory of its own for one test, removed with all that is in it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::test {

class TemporaryDirectory {
 public:
  enum class Place {
    disk,
    memory,  ///< where the system has such a place: what is synced a thousand times is quick there
  };
  explicit TemporaryDirectory(Place place = Place::disk);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Names in `directory`, sorted; none if it does not exist.
std::vector<std::string> list_names(const std::string& directory);
std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

}  // namespace headrace::test
