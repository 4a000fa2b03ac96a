// Scores a text in chunks, by the convention of llama.cpp's llama-perplexity: the text is cut into
// chunks of `context` tokens, each read from an empty cache with the begin-of-text token (where the
// model has one) in the place of its first, and the predictions of its second half are scored.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cli/scoring.h"
#include "headrace/engine.h"

namespace headrace {

struct ScoreTextOptions {
  std::uint32_t chunk_tokens = 512;
  std::uint32_t chunks_max = 0;   ///< 0: all
  std::uint32_t last_tokens = 0;  ///< scored of each chunk; 0: its second half
  bool decodes = false;           ///< read those one by one, as answers are
  std::function<std::chrono::nanoseconds()> now;
  /// Tokens read so far and in total. Return false to stop.
  std::function<bool(std::uint64_t tokens_done, std::uint64_t tokens_total)> on_progress;
};

struct TextScore {
  Score score;
  std::uint64_t tokens_read = 0;  ///< by the tested engine
  double seconds = 0;             ///< of the tested engine
};

/// `reference` may be null. With one, both engines read in steps of a few rows, so that only those
/// rows' logits of one of them are kept. Errors: invalid_argument (less than one chunk), and those
/// of Sequence::append().
Result<TextScore> score_text(Engine& tested, Engine* reference, std::span<const TokenId> text,
                             const ScoreTextOptions& options);

}  // namespace headrace
