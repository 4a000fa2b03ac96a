#include "text/sampler.h"

#include <llama.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "base/check.h"

namespace headrace {
namespace {

constexpr std::int32_t penalty_tokens = 64;
// Below this, dividing logits by the temperature overflows; people who ask for less want greedy.
constexpr float temperature_min = 0.001F;

Error out_of_range(const char* field, double value, const char* range) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return {ErrorCode::invalid_argument,
          std::string(field) + " is " + text + "; it must be " + range};
}

Result<void> validate(const SamplingOptions& options) {
  const auto within = [](float value, float low, float high) {
    return value >= low && value <= high;
  };  // NaN: no
  if (options.temperature != 0.0F && !within(options.temperature, temperature_min, 100.0F)) {
    return out_of_range("temperature", options.temperature, "0 (greedy) or from 0.001 to 100");
  }
  if (options.top_k < 0) return out_of_range("top-k", options.top_k, "0 (all tokens) or more");
  if (!within(options.top_p, 0.0F, 1.0F))
    return out_of_range("top-p", options.top_p, "from 0 to 1 (all tokens)");
  if (!within(options.min_p, 0.0F, 1.0F))
    return out_of_range("min-p", options.min_p, "from 0 (all tokens) to 1");
  if (!within(options.repeat_penalty, 0.01F, 100.0F)) {
    return out_of_range("repeat-penalty", options.repeat_penalty, "from 0.01 to 100 (1 is off)");
  }
  return {};
}

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerChain = std::unique_ptr<llama_sampler, FreeSampler>;

SamplerChain new_chain() {
  llama_sampler_chain_params params = llama_sampler_chain_default_params();
  params.no_perf = true;
  return SamplerChain(llama_sampler_chain_init(params));
}

}  // namespace

struct Sampler::State {
  std::size_t vocabulary_size = 0;
  bool greedy = false;
  bool penalises = false;
  SamplerChain chain;                        // greedy: penalties only
  std::vector<llama_token_data> candidates;  // [vocabulary], reused between tokens
};

Result<std::unique_ptr<Sampler>> Sampler::create(const Vocabulary& vocabulary,
                                                 const SamplingOptions& options) {
  HEADRACE_TRY(validate(options));
  auto state = std::make_unique<State>();
  state->vocabulary_size = vocabulary.size();
  // With one candidate left there is nothing to draw, and greedy also settles ties.
  state->greedy = options.temperature == 0.0F || options.top_k == 1;
  state->penalises = options.repeat_penalty != 1.0F;
  state->chain = new_chain();
  const auto add = [&](llama_sampler* sampler) {
    llama_sampler_chain_add(state->chain.get(), sampler);
  };
  if (state->penalises) {
    add(llama_sampler_init_penalties(static_cast<std::int32_t>(vocabulary.size()), penalty_tokens,
                                     options.repeat_penalty, 0.0F, 0.0F));
  }
  if (!state->greedy) {
    add(llama_sampler_init_top_k(options.top_k));
    add(llama_sampler_init_top_p(options.top_p, 1));
    add(llama_sampler_init_min_p(options.min_p, 1));
    add(llama_sampler_init_temp(options.temperature));
    add(llama_sampler_init_dist(options.seed));
  }
  return std::unique_ptr<Sampler>(new Sampler(std::move(state)));
}

Sampler::Sampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sampler::~Sampler() = default;

TokenId Sampler::sample(std::span<const float> logits) {
  HEADRACE_CHECK(logits.size() == state_->vocabulary_size,
                 "logits must cover the whole vocabulary");
  if (state_->greedy && !state_->penalises) {
    std::size_t best = 0;
    for (std::size_t token = 1; token < logits.size(); ++token) {
      if (logits[token] > logits[best] || std::isnan(logits[best])) best = token;
    }
    return static_cast<TokenId>(best);
  }

  std::vector<llama_token_data>& candidates = state_->candidates;
  candidates.resize(logits.size());
  for (std::size_t token = 0; token < logits.size(); ++token) {
    candidates[token] = {static_cast<llama_token>(token), logits[token], 0.0F};
  }
  llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(state_->chain.get(), &array);
  if (!state_->greedy) {
    HEADRACE_CHECK(array.selected >= 0, "the sampler chain ends with a draw");
    return array.data[array.selected].id;
  }
  const llama_token_data* best = array.data;
  for (const llama_token_data* token = array.data; token != array.data + array.size; ++token) {
    const bool smaller_id_of_a_tie = token->logit == best->logit && token->id < best->id;
    if (token->logit > best->logit || smaller_id_of_a_tie || std::isnan(best->logit)) best = token;
  }
  return best->id;
}

void Sampler::accept(TokenId token) {
  if (llama_sampler_chain_n(state_->chain.get()) > 0)
    llama_sampler_accept(state_->chain.get(), token);
}

}  // namespace headrace
