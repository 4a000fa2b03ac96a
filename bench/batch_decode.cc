// Tokens per second of several sequences that decode together, against one alone.
//
//   batch_decode MODEL.gguf [PROMPT_TOKENS] [ROUNDS]
//
// The counts take turns, so that a slow spell of the machine meets all of them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "headrace/engine.h"

namespace {

constexpr std::uint32_t counts[] = {1, 2, 4, 8};
constexpr std::uint32_t measured_tokens = 48;

struct Plan {
  std::string model;
  std::uint32_t prompt_tokens = 16;
  std::uint32_t rounds = 5;
};

/// Ends the program with the error, if there is one.
template <typename T>
headrace::Result<T> checked(headrace::Result<T> result) {
  if (result.ok()) return result;
  std::fprintf(stderr, "batch_decode: %s\n", result.error().message.c_str());
  std::exit(1);
}

double tokens_per_second(headrace::Engine& engine, const Plan& plan, std::uint32_t count) {
  std::vector<std::unique_ptr<headrace::Sequence>> sequences;
  std::vector<headrace::TokenId> tokens(plan.prompt_tokens, 1);
  std::vector<headrace::SequenceStep> steps;
  for (std::uint32_t i = 0; i < count; ++i) {
    sequences.push_back(checked(engine.new_sequence()).value());
    steps.push_back({sequences.back().get(), tokens});
  }
  static_cast<void>(checked(engine.append_together(steps)));
  const headrace::TokenId next = 2;
  for (headrace::SequenceStep& step : steps) step.tokens = {&next, 1};
  const auto start = std::chrono::steady_clock::now();
  for (std::uint32_t i = 0; i < measured_tokens; ++i) {
    static_cast<void>(checked(engine.append_together(steps)));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return count * measured_tokens / took.count();
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: %s MODEL.gguf [PROMPT_TOKENS] [ROUNDS]\n", arguments[0]);
    return 2;
  }
  Plan plan;
  plan.model = arguments[1];
  if (argument_count > 2) plan.prompt_tokens = static_cast<std::uint32_t>(std::atoi(arguments[2]));
  if (argument_count > 3) plan.rounds = static_cast<std::uint32_t>(std::atoi(arguments[3]));

  headrace::EngineOptions options;
  options.model_path = plan.model;
  options.context = plan.prompt_tokens + measured_tokens;
  options.sequences = 8;
  options.kv.memory_bytes = std::uint64_t{8} << 30;
  const auto engine = checked(headrace::Engine::open(options));
  std::vector<std::vector<double>> samples(std::size(counts));
  for (std::uint32_t round = 0; round <= plan.rounds; ++round) {
    for (std::size_t i = 0; i < std::size(counts); ++i) {
      const double speed = tokens_per_second(**engine, plan, counts[i]);
      if (round > 0) samples[i].push_back(speed);  // the first is a warm-up
    }
  }
  std::printf("| sequences | tok/s together | against one |\n|---|---|---|\n");
  double one = 0;
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    std::sort(samples[i].begin(), samples[i].end());
    const double median = samples[i][samples[i].size() / 2];
    if (i == 0) one = median;
    std::printf("| %u | %.0f | %.2f |\n", counts[i], median, median / one);
  }
  return 0;
}
