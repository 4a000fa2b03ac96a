// The text that a command reads.
#pragma once

#include <string>

#include "cli/command_context.h"

namespace headrace {

/// The contents of `file`; "-" is standard input. Errors: not_found, io, invalid_argument (empty).
Result<std::string> read_text_file(CommandContext& context, const std::string& file);

/// `file` (if named), a blank line, then `prompt` (if given). Errors: as above; invalid_argument if
/// there is neither.
Result<std::string> read_prompt_text(CommandContext& context, const std::string& file,
                                     const std::string& prompt);

}  // namespace headrace
