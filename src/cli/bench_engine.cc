#include "cli/bench_engine.h"

#include <algorithm>

#include "base/check.h"
#include "cli/bench_own.h"
#include "cli/bench_peers.h"

namespace headrace {

std::vector<std::string> all_engine_names() {
  std::vector<std::string> names;
  for (const OwnVariant& variant : own_variants()) names.emplace_back(variant.name);
  for (const LlamaVariant& variant : llama_variants()) names.emplace_back(variant.name);
  names.emplace_back(openvino_name);
  return names;
}

std::vector<std::string> default_engine_names() {
  std::vector<std::string> names = all_engine_names();
  // On a CPU it is what llama.cpp does by itself.
  std::erase(names, "llama.cpp-fa-on");
  std::erase_if(names, [](const std::string& name) {
    return std::ranges::any_of(own_variants(), [&](const OwnVariant& variant) {
      return name == variant.name && variant.attention != AttentionMode::exact;
    });
  });
  return names;
}

Result<std::unique_ptr<BenchEngine>> make_bench_engine(const std::string& name,
                                                       const BenchSetup& setup,
                                                       CommandContext& context) {
  for (const OwnVariant& variant : own_variants()) {
    if (name == variant.name) return make_own_engine(variant, setup, context);
  }
  for (const LlamaVariant& variant : llama_variants()) {
    if (name == variant.name) return make_llama_engine(variant, setup, context);
  }
  HEADRACE_CHECK(name == openvino_name, "the name of an engine");
  return make_openvino_engine(setup, context);
}

}  // namespace headrace
