// Several sequences in one pass over the weights.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "runtime/runtime.h"
#include "runtime/sequence.h"

namespace headrace {
namespace {

/// What is left to read of one sequence.
struct Remaining {
  RuntimeSequence* sequence = nullptr;
  std::span<const TokenId> tokens;
};

Result<std::vector<Remaining>> check_steps(const Runtime& runtime,
                                           std::span<const SequenceStep> steps) {
  std::vector<Remaining> remaining;
  for (const SequenceStep& step : steps) {
    auto* sequence = static_cast<RuntimeSequence*>(step.sequence);
    HEADRACE_CHECK(&sequence->runtime() == &runtime, "a sequence of another engine");
    const bool twice = std::any_of(remaining.begin(), remaining.end(),
                                   [&](const Remaining& r) { return r.sequence == sequence; });
    if (twice) {
      return Error{ErrorCode::invalid_argument, "a sequence is named twice in one step"};
    }
    HEADRACE_TRY(sequence->check(step.tokens));
    remaining.push_back({sequence, step.tokens});
  }
  return remaining;
}

}  // namespace

Result<void> Runtime::read_together(std::span<const SequenceStep> steps) {
  HEADRACE_TRY_ASSIGN(std::vector<Remaining> remaining, check_steps(*this, steps));
  while (!remaining.empty()) {
    std::vector<StepPart> parts;
    std::uint32_t rows_left = chunk_tokens_;
    for (Remaining& part : remaining) {
      part.tokens = part.tokens.subspan(take_cached(part.sequence->cache(), part.tokens));
      const std::size_t wanted = std::min<std::size_t>(part.tokens.size(), rows_left);
      if (wanted == 0) break;
      const std::uint32_t rows = rows_possible(part.sequence->cache(), wanted);
      const bool last = rows == part.tokens.size();
      parts.push_back({&part.sequence->cache(), part.tokens.first(rows), last ? rows - 1 : rows});
      rows_left -= rows;
    }
    HEADRACE_TRY_ASSIGN(const std::size_t taken,
                        step(parts, [&](std::size_t part, std::uint32_t, const float* logits) {
                          remaining[part].sequence->set_logits(logits);
                          return true;
                        }));
    for (std::size_t i = 0; i < taken; ++i) {
      remaining[i].tokens = remaining[i].tokens.subspan(parts[i].tokens.size());
    }
    std::erase_if(remaining, [](const Remaining& part) { return part.tokens.empty(); });
  }
  return {};
}

}  // namespace headrace
