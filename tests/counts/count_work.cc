// The work whose instructions tests/counts/counts.py counts: prompts and decode steps of tiny
// models of several weight types, on one thread. `write` makes the models, which is not counted;
// `run` prints the name of each piece of work before it does it.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ggml.h"
#include "headrace/engine.h"
#include "kernel/kernels.h"
#include "tests/support/tiny_model.h"

/// What is counted: valgrind finds it by its name. Reads `tokens` in steps of `step_tokens`.
extern "C" __attribute__((noinline)) bool headrace_counted(
    headrace::Sequence* sequence, std::span<const headrace::TokenId> tokens,
    std::size_t step_tokens) {
  while (!tokens.empty()) {
    if (!sequence->append(tokens.first(step_tokens), nullptr, nullptr).ok()) return false;
    tokens = tokens.subspan(step_tokens);
  }
  return true;
}

/// In place of ggml's own (--wrap of the linker), which prepares products that a vocabulary does
/// not need, with instructions of this machine that valgrind does not know.
extern "C" void __wrap_ggml_cpu_init() {}

namespace headrace::test {
namespace {

constexpr int skipped = 77;  // as counts.py

constexpr ggml_type types[] = {GGML_TYPE_F16,  GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                               GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};

std::string model_path(const std::string& directory, ggml_type type) {
  return directory + "/" + ggml_type_name(type) + ".gguf";
}

int write_models(const std::string& directory) {
  for (const ggml_type type : types) {
    TinyModelOptions options = tiny_model_options(GGML_TYPE_Q4_K);  // rows that suit every type
    options.weight_type = type;
    if (!write_tiny_model(model_path(directory, type), options).ok()) return 1;
  }
  return 0;
}

int run_models(const std::string& directory) {
  if (const auto checked = kernel::check_forced_kernels(); !checked.ok()) {
    std::fprintf(stderr, "%s\n", checked.error().message.c_str());
    return skipped;
  }
  const std::vector<TokenId> tokens = random_tokens(80, 1);
  const std::span<const TokenId> all = tokens;
  for (const ggml_type type : types) {
    EngineOptions options;
    options.model_path = model_path(directory, type);
    options.threads = 1;
    options.context = 128;
    const auto engine = Engine::open(options);
    if (!engine.ok()) {
      std::fprintf(stderr, "%s\n", engine.error().message.c_str());
      return 1;
    }
    const auto sequence = (*engine)->new_sequence();
    if (!sequence.ok()) return 1;
    // What the first step alone does is not counted.
    if (!(*sequence)->append(all.first(8), nullptr, nullptr).ok()) return 1;
    std::printf("%s, prompt of 64 tokens\n", ggml_type_name(type));
    if (!headrace_counted(sequence->get(), all.subspan(8, 64), 64)) return 1;
    std::printf("%s, 8 decode steps\n", ggml_type_name(type));
    if (!headrace_counted(sequence->get(), all.subspan(72, 8), 1)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace headrace::test

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  if (mode == "write") return headrace::test::write_models(argv[2]);
  if (mode == "run") return headrace::test::run_models(argv[2]);
  std::fprintf(stderr, "usage: count_work write|run DIRECTORY\n");
  return 2;
}
