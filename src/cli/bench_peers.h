// Other programs as engines of `headrace bench`: each measurement is a child process.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_engine.h"

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

}  // namespace headrace
