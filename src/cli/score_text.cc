#include "cli/score_text.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "cli/figures.h"

namespace headrace {
namespace {

// Rows whose logits are kept for the comparison: 32 rows of 49,152 logits are 6 MiB.
constexpr std::size_t step_rows = 32;

class ChunkScorer {
 public:
  ChunkScorer(Engine& tested, Engine* reference, const ScoreTextOptions& options, TextScore& result)
      : tested_(tested), reference_(reference), options_(options), result_(result) {
    if (reference != nullptr) kept_rows_.resize(step_rows * vocabulary());
  }

  std::uint64_t tokens_total = 0;

  /// The next token of a row is scored from the row after those only read to the last but one.
  Result<void> score(std::span<const TokenId> tokens, const std::vector<TokenId>& begin_of_text) {
    // One at a time: the new sequence may need the memory of the old one.
    tested_sequence_.reset();
    reference_sequence_.reset();
    HEADRACE_TRY_ASSIGN(tested_sequence_, tested_.new_sequence());
    if (reference_ != nullptr) {
      HEADRACE_TRY_ASSIGN(reference_sequence_, reference_->new_sequence());
    }
    const std::size_t scored =
        options_.last_tokens > 0 ? options_.last_tokens : tokens.size() - tokens.size() / 2;
    std::vector<TokenId> first_half(tokens.begin(),
                                    tokens.end() - static_cast<std::ptrdiff_t>(scored));
    if (!begin_of_text.empty()) first_half[0] = begin_of_text[0];
    HEADRACE_TRY(read_tested(first_half, nullptr));
    if (reference_ != nullptr) {
      HEADRACE_TRY(reference_sequence_->append(first_half, only_stop(), nullptr));
    }
    const std::size_t step = reference_ != nullptr ? step_rows : tokens.size();
    for (std::size_t row = first_half.size(); row + 1 < tokens.size(); row += step) {
      const std::size_t rows = std::min(step, tokens.size() - 1 - row);
      HEADRACE_TRY(score_rows(tokens.subspan(row, rows + 1)));
    }
    return {};
  }

 private:
  std::size_t vocabulary() const { return tested_.model().vocabulary; }

  // `tokens`: the rows to read and, last, the token after them.
  Result<void> score_rows(std::span<const TokenId> tokens) {
    const std::span<const TokenId> rows = tokens.first(tokens.size() - 1);
    std::size_t row = 0;
    HEADRACE_TRY(read_tested(rows, [&](std::uint32_t, const float* logits) {
      const std::span<const float> tested(logits, vocabulary());
      result_.score.add(tested, tokens[row + 1]);
      if (reference_ != nullptr) std::copy(tested.begin(), tested.end(), kept_row(row).begin());
      ++row;
      return true;
    }));
    if (reference_ == nullptr) return {};
    row = 0;
    return reference_sequence_->append(rows, only_stop(), [&](std::uint32_t, const float* logits) {
      result_.score.compare(std::span<const float>(logits, vocabulary()), kept_row(row++));
      return true;
    });
  }

  std::span<float> kept_row(std::size_t row) {
    return std::span<float>(kept_rows_).subspan(row * vocabulary(), vocabulary());
  }

  Result<void> read_tested(std::span<const TokenId> tokens, const LogitsCallback& on_logits) {
    const auto on_progress = [&](std::uint32_t done, std::uint32_t) {
      return options_.on_progress(result_.tokens_read + done, tokens_total);
    };
    const std::chrono::nanoseconds start = options_.now();
    if (options_.decodes && on_logits) {
      HEADRACE_TRY(decode_tested(tokens, on_progress, on_logits));
    } else {
      HEADRACE_TRY(tested_sequence_->append(tokens, on_progress, on_logits));
    }
    result_.seconds += std::chrono::duration<double>(options_.now() - start).count();
    result_.tokens_read += tokens.size();
    return {};
  }

  Result<void> decode_tested(std::span<const TokenId> tokens, const ProgressCallback& on_progress,
                             const LogitsCallback& on_logits) {
    const std::size_t first = tested_sequence_->tokens().size();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      HEADRACE_TRY(tested_sequence_->decode(tokens[i]));
      on_logits(static_cast<std::uint32_t>(first + i), tested_sequence_->logits().data());
      const auto total = static_cast<std::uint32_t>(tokens.size());
      if (!on_progress(static_cast<std::uint32_t>(i + 1), total))
        return Error{ErrorCode::cancelled, "stopped by the caller"};
    }
    return {};
  }

  ProgressCallback only_stop() {
    return [&](std::uint32_t, std::uint32_t) {
      return options_.on_progress(result_.tokens_read, tokens_total);
    };
  }

  Engine& tested_;
  Engine* reference_;
  const ScoreTextOptions& options_;
  TextScore& result_;
  std::unique_ptr<Sequence> tested_sequence_;
  std::unique_ptr<Sequence> reference_sequence_;
  std::vector<float> kept_rows_;  // [step_rows, vocabulary], of the tested engine
};

}  // namespace

Result<TextScore> score_text(Engine& tested, Engine* reference, std::span<const TokenId> text,
                             const ScoreTextOptions& options) {
  const std::size_t chunk_tokens = options.chunk_tokens;
  if (chunk_tokens < 4)
    return Error{ErrorCode::invalid_argument, "--context must be at least 4 to score a text"};
  if (options.last_tokens >= chunk_tokens || options.last_tokens == 1) {
    return Error{
        ErrorCode::invalid_argument,
        "--last must be at least 2 and less than --context, " + format_count(chunk_tokens)};
  }
  std::size_t chunks = text.size() / chunk_tokens;
  if (chunks == 0) {
    return Error{ErrorCode::invalid_argument,
                 "the text has " + format_count(text.size()) + " tokens, less than one chunk of " +
                     format_count(chunk_tokens) +
                     "; give it a longer text, or a smaller --context"};
  }
  if (options.chunks_max > 0) chunks = std::min<std::size_t>(chunks, options.chunks_max);

  // What the tokenizer puts before an empty text is the begin-of-text token, or nothing.
  HEADRACE_TRY_ASSIGN(const std::vector<TokenId> begin_of_text,
                      tested.tokenize("", {.add_special = true}));
  TextScore result;
  ChunkScorer scorer(tested, reference, options, result);
  scorer.tokens_total = chunks * (chunk_tokens - 1);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    HEADRACE_TRY(scorer.score(text.subspan(chunk * chunk_tokens, chunk_tokens), begin_of_text));
  }
  return result;
}

}  // namespace headrace
