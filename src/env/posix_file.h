// Files of the operating system, for posix_env(). The contracts are those of env.h.
#pragma once

#include <memory>
#include <string>

#include "env/env.h"

namespace headrace {

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, OpenMode mode);
Result<std::unique_ptr<MappedFile>> map_posix_file(const std::string& path);
Result<void> sync_posix_directory(const std::string& path);
Result<std::string> read_posix_file(const std::string& path);
Result<std::unique_ptr<FileLock>> lock_posix_file(const std::string& path);

}  // namespace headrace
