// Other programs as engines of `headrace bench`: each measurement is a child process.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_engine.h"
#include "headrace/types.h"

namespace headrace {

/// A setting of llama.cpp that has a name in the benchmark.
struct LlamaVariant {
  const char* name;
  std::vector<std::string> arguments;  ///< of llama-bench
};

std::span<const LlamaVariant> llama_variants();
inline constexpr const char* openvino_name = "openvino-genai";

/// Errors: not_found where `setup` names no program that exists.
Result<std::unique_ptr<BenchEngine>> make_llama_engine(const LlamaVariant& variant,
                                                       const BenchSetup& setup,
                                                       CommandContext& context);
Result<std::unique_ptr<BenchEngine>> make_openvino_engine(const BenchSetup& setup,
                                                          CommandContext& context);

/// What llama.cpp's server takes until the first token after a prompt.
struct ServerTimes {
  double read_seconds = 0;     ///< reading it
  double restart_seconds = 0;  ///< another process, with the slot that the first one has saved
};

/// Its files are left in `folder`. Errors: not_found where `setup` names no program that exists,
/// cancelled; all others mean that it cannot do this.
Result<ServerTimes> measure_llama_server(std::span<const TokenId> prompt, const std::string& folder,
                                         const BenchSetup& setup, CommandContext& context);

}  // namespace headrace
