// Asks an engine what `headrace eval` asks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "cli/eval_task.h"
#include "headrace/engine.h"

namespace headrace {

/// Sequences that an engine must have room for.
inline constexpr std::uint32_t eval_sequences = 3;

struct EvalRunOptions {
  /// Of the questions of all contexts in order, those that are asked. Empty: all.
  std::vector<bool> wanted = {};
  std::function<std::chrono::nanoseconds()> now;
  /// Called often. Return false to stop.
  std::function<bool()> go_on;
};

struct EvalAnswers {
  std::vector<bool> right;  ///< of all questions; false where it was not asked
  std::uint64_t steps = 0;  ///< tokens of questions and answers, read one by one
  double seconds = 0;       ///< of these
};

/// Each context is read at once, and what is compressed is so before a question is known. Questions
/// and answers are read as generate() reads what it draws. A question with one answer is right if
/// the likeliest tokens are the answer's, one with several if the right one has the greatest
/// probability per byte. Contexts without a question that is wanted are not read.
/// Errors: those of Sequence::append().
Result<EvalAnswers> run_eval_task(Engine& engine, const EvalTask& task,
                                  const EvalRunOptions& options);

}  // namespace headrace
