#include "cli/bench_own.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace {
namespace {

constexpr OwnVariant variants[] = {
    {.name = "headrace"},
    {.name = "headrace-f16", .kv_type = KvType::f16},
    {.name = "headrace-q8", .kv_type = KvType::q8},
    {.name = "headrace-half", .memory_divisor = 2},
    {.name = "headrace-eighth", .memory_divisor = 8},
    {.name = "headrace-recall", .attention = AttentionMode::recall, .tokens_divisor = 8},
    {.name = "headrace-window", .attention = AttentionMode::window, .tokens_divisor = 8},
    {.name = "headrace-sparse", .attention = AttentionMode::sparse, .tokens_divisor = 8},
};

/// Enough for the threads, the scratch memory and the weights to be there.
constexpr std::uint32_t warm_up_tokens = 512;

Error cancelled() { return {ErrorCode::cancelled, "stopped"}; }

/// Tokens from all over the vocabulary, the same in every run. Which they are changes no speed.
std::vector<TokenId> make_prompt(std::uint32_t tokens, std::uint32_t vocabulary) {
  constexpr std::uint64_t step = 7919;
  std::vector<TokenId> prompt(tokens);
  for (std::uint32_t i = 0; i < tokens; ++i) {
    prompt[i] = static_cast<TokenId>((i + 1) * step % vocabulary);
  }
  return prompt;
}

class OwnEngine final : public BenchEngine {
 public:
  OwnEngine(const OwnVariant& variant, const BenchSetup& setup, CommandContext& context)
      : BenchEngine(variant.name), variant_(variant), setup_(setup), context_(context) {}

  Result<BenchSample> measure(const Workload& workload) override {
    HEADRACE_TRY_ASSIGN(const ModelInfo model, context_.inspect_model(setup_.model_path));
    HEADRACE_TRY_ASSIGN(const auto engine, open(workload, model));
    const std::vector<TokenId> prompt =
        make_prompt(workload.prompt_tokens, engine->model().vocabulary);
    HEADRACE_TRY(warm_up(*engine, prompt));
    BenchSample sample;
    if (workload.kind == WorkloadKind::together) {
      HEADRACE_TRY_ASSIGN(sample.tokens_per_second, run_together(*engine, workload, prompt));
    } else {
      HEADRACE_TRY_ASSIGN(sample.tokens_per_second, run_alone(*engine, workload, prompt));
    }
    sample.kv_bytes_peak = engine->kv_stats().kv_bytes_peak;
    return sample;
  }

 private:
  Result<std::unique_ptr<Engine>> open(const Workload& workload, const ModelInfo& model) const {
    auto engine = context_.open_engine(options_for(workload, model));
    if (!engine.ok() && engine.error().code == ErrorCode::invalid_argument &&
        variant_.attention != AttentionMode::exact) {
      return Error{ErrorCode::out_of_budget, "1/" + std::to_string(variant_.tokens_divisor) +
                                                 " of the tokens of so short a context is what " +
                                                 to_string(variant_.attention) + " always reads"};
    }
    if (!engine.ok() && engine.error().code == ErrorCode::out_of_budget &&
        variant_.memory_divisor > 1) {
      return Error{ErrorCode::out_of_budget, "1/" + std::to_string(variant_.memory_divisor) +
                                                 " of the KV of so short a context is less than "
                                                 "a step needs"};
    }
    return engine;
  }

  EngineOptions options_for(const Workload& workload, const ModelInfo& model) const {
    EngineOptions options;
    options.model_path = setup_.model_path;
    options.context = workload.context_tokens();
    options.sequences = workload.sequences;
    options.threads = setup_.threads;
    options.kv.type = variant_.kv_type;
    options.kv.reuse = false;  // every round reads its prompt again
    options.kv.disk_directory = setup_.disk_directory;
    if (variant_.memory_divisor > 1) {
      options.kv.memory_bytes = std::uint64_t{workload.sequences} * workload.context_tokens() *
                                model.kv_bytes_per_token(variant_.kv_type) /
                                variant_.memory_divisor;
    }
    AttentionOptions& attention = options.attention;
    const std::uint32_t tokens = workload.context_tokens() / variant_.tokens_divisor;
    attention.mode = variant_.attention;
    attention.recall_tokens = tokens;
    attention.recall_mass = 1;
    attention.recall_share = 0;
    attention.window_tokens = tokens - std::min(tokens, attention.recall_first);
    attention.sparse_tokens = tokens;
    return options;
  }

  ProgressCallback until_interrupted() const {
    return [this](std::uint32_t, std::uint32_t) { return !context_.interrupts.pending(); };
  }

  Result<void> warm_up(Engine& engine, std::span<const TokenId> prompt) const {
    HEADRACE_TRY_ASSIGN(const auto sequence, engine.new_sequence());
    return sequence->append(prompt.first(std::min<std::size_t>(prompt.size(), warm_up_tokens)),
                            until_interrupted(), nullptr);
  }

  Result<double> run_alone(Engine& engine, const Workload& workload,
                           std::span<const TokenId> prompt) const {
    HEADRACE_TRY_ASSIGN(const auto sequence, engine.new_sequence());
    GenerateOptions options;
    options.max_tokens = workload.steps + 1;  // the first is the prompt's
    options.ignore_end = true;
    options.on_progress = until_interrupted();
    options.on_text = [this](std::string_view) { return !context_.interrupts.pending(); };
    HEADRACE_TRY_ASSIGN(const Generation generation, sequence->generate(prompt, options));
    if (context_.interrupts.pending()) return cancelled();
    return workload.kind == WorkloadKind::prefill ? generation.prefill_tokens_per_second()
                                                  : generation.decode_tokens_per_second();
  }

  Result<double> run_together(Engine& engine, const Workload& workload,
                              std::span<const TokenId> prompt) const {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<SequenceStep> parts;
    for (std::uint32_t i = 0; i < workload.sequences; ++i) {
      // They read one prompt, and are to be measured as if they read several.
      HEADRACE_TRY_ASSIGN(auto sequence, engine.new_sequence({.tenant = std::to_string(i)}));
      parts.push_back({sequence.get(), prompt});
      sequences.push_back(std::move(sequence));
    }
    HEADRACE_TRY(engine.append_together(parts));
    for (SequenceStep& part : parts) part.tokens = prompt.first(1);
    const std::chrono::nanoseconds start = context_.env.now();
    for (std::uint32_t step = 0; step < workload.steps; ++step) {
      HEADRACE_TRY(engine.append_together(parts));
      if (context_.interrupts.pending()) return cancelled();
    }
    const double seconds = std::chrono::duration<double>(context_.env.now() - start).count();
    return seconds > 0 ? workload.sequences * workload.steps / seconds : 0;
  }

  const OwnVariant variant_;
  const BenchSetup setup_;
  CommandContext& context_;
};

}  // namespace

std::span<const OwnVariant> own_variants() { return variants; }

std::unique_ptr<BenchEngine> make_own_engine(const OwnVariant& variant, const BenchSetup& setup,
                                             CommandContext& context) {
  return std::make_unique<OwnEngine>(variant, setup, context);
}

}  // namespace headrace
