// What `headrace bench` measures: workloads that every engine can run, by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/result.h"

namespace headrace {

enum class WorkloadKind {
  prefill,   ///< a prompt is read
  decode,    ///< tokens follow a prompt, one after the other
  together,  ///< the same, in several sequences that share the passes
};

struct Workload {
  std::string name;
  WorkloadKind kind = WorkloadKind::prefill;
  std::uint32_t prompt_tokens = 0;  ///< of each sequence
  std::uint32_t steps = 0;          ///< measured after the prompt; 0 for prefill
  std::uint32_t sequences = 1;
  bool when_named = false;  ///< not part of a run that names no workloads

  /// Tokens that a sequence has at the end.
  std::uint32_t context_tokens() const { return prompt_tokens + steps; }
};

/// All there are. A decode workload is named after the tokens that it begins with.
std::span<const Workload> all_workloads();

/// The workload as a model with this trained context can run it: decoding begins so early that it
/// ends within it. Errors: unsupported (the context that the name promises is longer).
Result<Workload> fit_workload(const Workload& workload, std::uint32_t trained_context);

/// `names` without repetitions, if `all` has them; `what` they are is for the message.
/// Errors: invalid_argument, listing the known ones.
Result<std::vector<std::string>> choose_names(std::string_view what,
                                              const std::vector<std::string>& names,
                                              const std::vector<std::string>& all);

}  // namespace headrace
