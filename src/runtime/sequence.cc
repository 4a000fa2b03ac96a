#include "runtime/sequence.h"

#include <algorithm>
#include <chrono>

#include "text/sampler.h"
#include "text/utf8_stream.h"

namespace headrace {
namespace {

Error cancelled() { return {ErrorCode::cancelled, "stopped by the caller"}; }

double seconds_between(std::chrono::nanoseconds from, std::chrono::nanoseconds to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Result<void> RuntimeSequence::check(std::span<const TokenId> tokens) const {
  if (tokens.empty()) return Error{ErrorCode::invalid_argument, "there is no text to read"};
  const std::size_t total = cache_->tokens().size() + tokens.size();
  if (total > runtime_.context()) {
    const bool can_grow = runtime_.context() < runtime_.model().trained_context;
    return Error{ErrorCode::invalid_argument,
                 "the text makes " + std::to_string(total) +
                     " tokens and the context has room for " + std::to_string(runtime_.context()) +
                     (can_grow ? "; raise --context (this model: up to " +
                                     std::to_string(runtime_.model().trained_context) +
                                     ") or shorten the text"
                               : ", all that this model was trained for; shorten the text")};
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

Result<void> RuntimeSequence::append(std::span<const TokenId> tokens,
                                     const ProgressCallback& on_progress,
                                     const LogitsCallback& on_logits) {
  HEADRACE_TRY(check(tokens));
  bool stopped = false;
  for (std::size_t done = 0; done < tokens.size();) {
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

Result<Generation> RuntimeSequence::generate(std::span<const TokenId> prompt,
                                             const GenerateOptions& options) {
  Generation generation;
  HEADRACE_TRY_ASSIGN(const std::unique_ptr<Sampler> sampler,
                      Sampler::create(runtime_.vocabulary(), options.sampling));
  const std::chrono::nanoseconds start = runtime_.env().now();
  const std::size_t tokens_before = cache_->tokens().size();
  Result<void> read = append(prompt, options.on_progress, nullptr);
  const std::chrono::nanoseconds prefill_end = runtime_.env().now();
  generation.prompt_tokens = static_cast<std::uint32_t>(cache_->tokens().size() - tokens_before);
  generation.prefill_seconds = seconds_between(start, prefill_end);
  if (!read.ok()) {
    if (read.error().code != ErrorCode::cancelled) return std::move(read).error();
    generation.finish_reason = "cancelled";
    return generation;
  }
  for (const TokenId token : cache_->tokens()) sampler->accept(token);

  Utf8Stream stream;
  generation.finish_reason = "length";
  while (options.max_tokens == 0 || generation.tokens.size() < options.max_tokens) {
    const TokenId token = sampler->sample(logits_);
    if (!options.ignore_end && runtime_.is_end_of_generation(token)) {
      generation.finish_reason = "stop";
      break;
    }
    sampler->accept(token);
    generation.tokens.push_back(token);
    // An end token that is ignored is part of the sequence, but no text.
    const std::string piece =
        runtime_.is_end_of_generation(token) ? "" : stream.push(runtime_.token_bytes(token));
    generation.text += piece;
    if (options.on_text && !piece.empty() && !options.on_text(piece)) {
      generation.finish_reason = "cancelled";
      break;
    }
    const bool wants_more =
        options.max_tokens == 0 || generation.tokens.size() < options.max_tokens;
    if (!wants_more || cache_->tokens().size() == runtime_.context()) break;
    HEADRACE_TRY(append({&token, 1}, nullptr, nullptr));
  }
  generation.decode_seconds = seconds_between(prefill_end, runtime_.env().now());
  return generation;
}

}  // namespace headrace
