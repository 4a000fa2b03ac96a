#include "cli/prompt_text.h"

#include <iterator>

namespace headrace {

Result<std::string> read_text_file(CommandContext& context, const std::string& file) {
  std::string text;
  if (file == "-") {
    text.assign(std::istreambuf_iterator<char>(context.in), std::istreambuf_iterator<char>());
  } else {
    HEADRACE_TRY_ASSIGN(text, context.env.read_file(file));
  }
  if (text.empty()) {
    const std::string name = file == "-" ? "standard input" : file;
    return Error{ErrorCode::invalid_argument, name + " is empty; give it a text to read"};
  }
  return text;
}

Result<std::string> read_prompt_text(CommandContext& context, const std::string& file,
                                     const std::string& prompt) {
  if (file.empty() && prompt.empty()) {
    return Error{
        ErrorCode::invalid_argument,
        "nothing to read; give a prompt with -p, a file with -f (- is standard input), or both"};
  }
  if (file.empty()) return prompt;
  HEADRACE_TRY_ASSIGN(std::string text, read_text_file(context, file));
  if (prompt.empty()) return text;
  text += text.back() == '\n' ? "\n" : "\n\n";
  return text + prompt;
}

}  // namespace headrace
