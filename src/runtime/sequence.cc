#include "runtime/sequence.h"

#include <algorithm>
#include <chrono>

#include "runtime/prompt_lookup.h"
#include "text/sampler.h"
#include "text/utf8_stream.h"

namespace headrace {
namespace {

Error cancelled() { return {ErrorCode::cancelled, "stopped by the caller"}; }

double seconds_between(std::chrono::nanoseconds from, std::chrono::nanoseconds to) {
  return std::chrono::duration<double>(to - from).count();
}

/// The least of the `sorted` values that so many percent do not exceed.
double percentile(std::span<const double> sorted, std::size_t percent) {
  return sorted.empty() ? 0 : sorted[(sorted.size() * percent + 99) / 100 - 1];
}

/// Draws the tokens of an answer and hands them out as text.
class Answer {
 public:
  Answer(const Runtime& runtime, const GenerateOptions& options, Sampler& sampler,
         Generation& generation)
      : runtime_(runtime), options_(options), sampler_(sampler), generation_(generation) {
    generation_.finish_reason = "length";
  }

  /// The next token, from the logits after the one before it. False when the answer ends with it,
  /// or, at an end-of-generation token, before it.
  bool draw(const float* logits) {
    if (full()) return false;
    const TokenId token = sampler_.sample({logits, runtime_.model().vocabulary});
    const bool ends = runtime_.is_end_of_generation(token);
    if (ends && !options_.ignore_end) {
      generation_.finish_reason = "stop";
      return false;
    }
    sampler_.accept(token);
    generation_.tokens.push_back(token);
    // An end token that is ignored is part of the sequence, but no text.
    const std::string piece = ends ? "" : stream_.push(runtime_.token_bytes(token));
    generation_.text += piece;
    if (options_.on_text && !piece.empty() && !options_.on_text(piece)) {
      generation_.finish_reason = "cancelled";
      return false;
    }
    return !full();
  }

 private:
  bool full() const {
    return options_.max_tokens != 0 && generation_.tokens.size() >= options_.max_tokens;
  }

  const Runtime& runtime_;
  const GenerateOptions& options_;
  Sampler& sampler_;
  Generation& generation_;
  Utf8Stream stream_;
};

}  // namespace

Result<void> RuntimeSequence::check(std::span<const TokenId> tokens) const {
  if (tokens.empty()) return Error{ErrorCode::invalid_argument, "there is no text to read"};
  const std::size_t total = cache_->tokens().size() + tokens.size();
  if (total > runtime_.context()) {
    const std::uint32_t trained = runtime_.model().trained_context;
    std::string advice = ", all that this model was trained for; shorten the text";
    if (runtime_.packs_positions()) {
      advice = "; raise --context or shorten the text";
    } else if (runtime_.context() < trained) {
      advice = "; raise --context (this model: up to " + std::to_string(trained) +
               ") or shorten the text";
    }
    return Error{ErrorCode::invalid_argument, "the text makes " + std::to_string(total) +
                                                  " tokens and the context has room for " +
                                                  std::to_string(runtime_.context()) + advice};
  }
  const auto vocabulary = static_cast<TokenId>(runtime_.model().vocabulary);
  const auto unknown = std::find_if(tokens.begin(), tokens.end(),
                                    [&](TokenId t) { return t < 0 || t >= vocabulary; });
  if (unknown != tokens.end()) {
    return Error{ErrorCode::invalid_argument, "token " + std::to_string(*unknown) +
                                                  " is not in the vocabulary of " +
                                                  std::to_string(vocabulary)};
  }
  return {};
}

Result<void> RuntimeSequence::read(std::span<const TokenId> tokens,
                                   const ProgressCallback& on_progress,
                                   const LogitsCallback& on_logits) {
  HEADRACE_TRY(check(tokens));
  bool stopped = false;
  for (std::size_t done = 0; done < tokens.size();) {
    if (!on_logits) done += Runtime::take_cached(*cache_, tokens.subspan(done));
    const std::uint32_t rows = runtime_.rows_possible(*cache_, tokens.size() - done);
    const auto first_position = static_cast<std::uint32_t>(cache_->tokens().size());
    const bool last = done + rows == tokens.size();
    const std::uint32_t first_logits_row = on_logits ? 0 : last ? rows - 1 : rows;
    HEADRACE_TRY(runtime_.step(*cache_, tokens.subspan(done, rows), first_logits_row,
                               [&](std::uint32_t row, const float* logits) {
                                 if (row + 1 == rows) set_logits(logits);
                                 if (on_logits && !stopped)
                                   stopped = !on_logits(first_position + row, logits);
                                 return true;
                               }));
    done += rows;
    if (on_progress &&
        !on_progress(static_cast<std::uint32_t>(done), static_cast<std::uint32_t>(tokens.size()))) {
      stopped = true;
    }
    if (stopped && done < tokens.size()) return cancelled();
  }
  return stopped ? Result<void>(cancelled()) : Result<void>();
}

Result<void> RuntimeSequence::read_decoding(TokenId token) {
  HEADRACE_TRY(check({&token, 1}));
  return step_decoding({&token, 1}, [&](std::uint32_t, const float* logits) {
    set_logits(logits);
    return true;
  });
}

/// One step of an answer, whose rows may turn out to be too many.
Result<void> RuntimeSequence::step_decoding(std::span<const TokenId> tokens,
                                            const RowLogits& on_row) {
  cache_->set_decoding(true);
  Result<void> outcome = runtime_.step_guessing(*cache_, tokens, on_row);
  cache_->set_decoding(false);
  return outcome;
}

Result<void> RuntimeSequence::make_zone(std::uint32_t first_token, std::uint32_t tokens) {
  const std::uint64_t end = std::uint64_t{first_token} + tokens;
  if (tokens == 0) return Error{ErrorCode::invalid_argument, "a zone has at least one token"};
  if (runtime_.packs_positions()) {
    return Error{ErrorCode::invalid_argument,
                 "a permanent zone has no place where positions are packed; leave "
                 "--window-positions packed out, or the zone"};
  }
  if (end > runtime_.context()) {
    return Error{ErrorCode::invalid_argument, "a zone would end with token " + std::to_string(end) +
                                                  " and the context has room for " +
                                                  std::to_string(runtime_.context())};
  }
  cache_->keep(first_token, tokens);
  return {};
}

Result<std::uint64_t> RuntimeSequence::demote(const PurgeOptions& options) {
  if (!(options.keep_ratio >= 0 && options.keep_ratio <= 1)) {
    return Error{ErrorCode::invalid_argument,
                 "a purge keeps a share of 0 to 1, not " + std::to_string(options.keep_ratio)};
  }
  if (!runtime_.can_demote()) {
    return Error{ErrorCode::invalid_argument,
                 "nothing can be purged: the keys and values have no place besides memory; give "
                 "--kv-memory less than a full context needs, and leave --kv-evicted recipe out"};
  }
  return cache_->purge(options);
}

Result<std::unique_ptr<Sequence>> RuntimeSequence::fork() {
  return runtime_.guarded([&]() -> Result<std::unique_ptr<Sequence>> {
    HEADRACE_TRY_ASSIGN(std::unique_ptr<SequenceCache> cache, cache_->fork());
    auto copy = std::make_unique<RuntimeSequence>(runtime_, std::move(cache));
    copy->logits_ = logits_;
    return std::unique_ptr<Sequence>(std::move(copy));
  });
}

Result<Generation> RuntimeSequence::answer(std::span<const TokenId> prompt,
                                           const GenerateOptions& options) {
  Generation generation;
  HEADRACE_TRY_ASSIGN(const std::unique_ptr<Sampler> sampler,
                      Sampler::create(runtime_.vocabulary(), options.sampling));
  const std::chrono::nanoseconds start = runtime_.env().now();
  const std::size_t tokens_before = cache_->tokens().size();
  const std::uint64_t reused_before = cache_->tokens_reused();
  Result<void> prefill = read(prompt, options.on_progress, nullptr);
  const std::chrono::nanoseconds prefill_end = runtime_.env().now();
  generation.prompt_tokens = static_cast<std::uint32_t>(cache_->tokens().size() - tokens_before);
  generation.reused_tokens = static_cast<std::uint32_t>(cache_->tokens_reused() - reused_before);
  generation.prefill_seconds = seconds_between(start, prefill_end);
  if (!prefill.ok()) {
    if (prefill.error().code != ErrorCode::cancelled) return std::move(prefill).error();
    generation.finish_reason = "cancelled";
    return generation;
  }
  for (const TokenId token : cache_->tokens()) sampler->accept(token);

  Answer drawn(runtime_, options, *sampler, generation);
  PromptLookup lookup;
  if (options.prompt_lookup_tokens > 0) {
    for (const TokenId token : cache_->tokens()) lookup.add(token);
  }
  std::vector<double> steps;
  bool more = drawn.draw(logits_.data());
  while (more && cache_->tokens().size() < runtime_.context()) {
    std::vector<TokenId> step = {generation.tokens.back()};
    if (options.prompt_lookup_tokens > 0) {
      lookup.add(step[0]);
      const std::vector<TokenId> guesses = lookup.guess(guesses_possible(options, generation));
      step.insert(step.end(), guesses.begin(), guesses.end());
    }
    generation.guessed_tokens += static_cast<std::uint32_t>(step.size() - 1);
    const std::chrono::nanoseconds step_start = runtime_.env().now();
    HEADRACE_TRY(step_decoding(step, [&](std::uint32_t row, const float* logits) {
      set_logits(logits);
      more = drawn.draw(logits);
      const bool right = more && row + 1 < step.size() && generation.tokens.back() == step[row + 1];
      if (!right) return false;
      lookup.add(step[row + 1]);
      ++generation.guesses_kept;
      return true;
    }));
    steps.push_back(seconds_between(step_start, runtime_.env().now()));
  }
  std::ranges::sort(steps);
  generation.step_seconds_p50 = percentile(steps, 50);
  generation.step_seconds_p90 = percentile(steps, 90);
  generation.step_seconds_p99 = percentile(steps, 99);
  generation.decode_seconds = seconds_between(prefill_end, runtime_.env().now());
  return generation;
}

std::size_t RuntimeSequence::guesses_possible(const GenerateOptions& options,
                                              const Generation& generation) const {
  const std::size_t rows = std::min<std::size_t>(std::size_t{options.prompt_lookup_tokens} + 1,
                                                 runtime_.context() - cache_->tokens().size());
  // Guesses are checked in one step, and each row of a step that reads a part chooses for itself.
  if (runtime_.reads_a_part()) return 0;
  // The last token that is drawn is not read.
  const std::size_t wanted =
      options.max_tokens == 0
          ? rows
          : std::min<std::size_t>(rows, options.max_tokens - generation.tokens.size());
  return runtime_.rows_possible(*cache_, wanted) - 1;
}

}  // namespace headrace
