#include "cli/sampling_flags.h"

#include <CLI/CLI.hpp>
#include <string>

namespace headrace {

void SamplingFlags::add_to(CLI::App& command, std::uint32_t tokens) {
  options.max_tokens = tokens;
  const std::string tokens_default = tokens == 0 ? "until the model ends" : std::to_string(tokens);
  const std::string group = "Answer";
  const auto add = [&](const char* names, auto& value, const std::string& text, const char* type) {
    command.add_option(names, value, text)->type_name(type)->group(group);
  };
  SamplingOptions& sampling = options.sampling;
  add("-n,--tokens", options.max_tokens,
      "Most tokens of an answer; 0: until the model ends or the context is full (default: " +
          tokens_default + ")",
      "TOKENS");
  add("--temperature", sampling.temperature,
      "0: always the likeliest token; higher: more varied (default: 0)", "T");
  add("--top-k", sampling.top_k, "Draw from the K likeliest tokens; 0: all (default: 40)", "K");
  add("--top-p", sampling.top_p,
      "Draw from the likeliest tokens that together reach P (default: 0.95)", "P");
  add("--min-p", sampling.min_p,
      "Leave out tokens below this fraction of the likeliest (default: 0.05)", "P");
  add("--repeat-penalty", sampling.repeat_penalty,
      "Above 1: avoid tokens of the last 64 (default: 1)", "X");
  add("--seed", sampling.seed, "Same seed, same draws (default: a new one each time)", "N");
  add("--prompt-lookup", options.prompt_lookup_tokens,
      "Guess up to N tokens ahead from what the text said before and check them in one step: the "
      "same answer, sooner where it repeats the text (default: 0, off)",
      "N");
  command.add_flag("--ignore-eos", options.ignore_end, "Go on after the model's end token")
      ->group(group);
}

}  // namespace headrace
