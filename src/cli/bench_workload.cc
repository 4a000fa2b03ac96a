#include "cli/bench_workload.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr std::uint32_t decode_steps = 64;

Workload prefill(std::uint32_t tokens) {
  return {.name = "prefill-" + std::to_string(tokens), .prompt_tokens = tokens};
}

Workload decode(std::uint32_t depth) {
  return {.name = "decode-" + std::to_string(depth),
          .kind = WorkloadKind::decode,
          .prompt_tokens = depth,
          .steps = decode_steps};
}

Workload together(std::uint32_t sequences) {
  return {.name = "decode-" + std::to_string(sequences) + "-together",
          .kind = WorkloadKind::together,
          .prompt_tokens = 16,
          .steps = decode_steps,
          .sequences = sequences};
}

Workload when_named(Workload workload) {
  workload.when_named = true;
  return workload;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::span<const Workload> all_workloads() {
  static const std::array all = {
      prefill(512),   prefill(2048), prefill(8192), prefill(16384),
      prefill(32768), decode(16),    decode(2048),  when_named(decode(4096)),
      decode(8192),   decode(16384), decode(32768), together(8),
  };
  return all;
}

Result<Workload> fit_workload(const Workload& workload, std::uint32_t trained_context) {
  if (std::max(workload.prompt_tokens, workload.steps + 1) > trained_context) {
    return Error{ErrorCode::unsupported,
                 "the model was trained for " + std::to_string(trained_context) + " tokens"};
  }
  Workload fitting = workload;
  fitting.prompt_tokens = std::min(workload.prompt_tokens, trained_context - workload.steps);
  return fitting;
}

Result<std::vector<std::string>> choose_names(std::string_view what,
                                              const std::vector<std::string>& names,
                                              const std::vector<std::string>& all) {
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      return Error{ErrorCode::invalid_argument, "there is no " + std::string(what) + " '" + name +
                                                    "'; there are " + joined(all)};
    }
    if (std::find(chosen.begin(), chosen.end(), name) == chosen.end()) chosen.push_back(name);
  }
  return chosen;
}

}  // namespace headrace
