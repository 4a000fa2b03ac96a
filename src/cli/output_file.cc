#include "cli/output_file.h"

#include <span>

namespace headrace {

Result<void> expect_folder_of(Env& env, const std::string& file) {
  const std::size_t slash = file.find_last_of('/');
  if (slash == std::string::npos || slash == 0 || env.exists(file.substr(0, slash))) return {};
  return Error{ErrorCode::not_found,
               "cannot write '" + file + "': there is no folder '" + file.substr(0, slash) + "'"};
}

Result<void> write_file(Env& env, const std::string& path, const std::string& text) {
  const OpenMode mode = env.exists(path) ? OpenMode::read_write : OpenMode::create_new;
  HEADRACE_TRY_ASSIGN(const auto file, env.open_file(path, mode));
  HEADRACE_TRY(file->truncate(0));
  const Bytes bytes = std::as_bytes(std::span(text));
  return file->write_at(0, std::span(&bytes, 1));
}

}  // namespace headrace
