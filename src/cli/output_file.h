// Files that a command writes beside what it prints.
#pragma once

#include <string>

#include "env/env.h"

namespace headrace {

/// So that a path that cannot work is found before the minutes of measuring. Errors: not_found.
Result<void> expect_folder_of(Env& env, const std::string& file);

/// Replaces what the file holds. Errors: those of Env::open_file() and File::write_at().
Result<void> write_file(Env& env, const std::string& path, const std::string& text);

}  // namespace headrace
