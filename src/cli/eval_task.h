// What `headrace eval` asks: contexts with facts in them, and questions about these, made from a
// seed. The same arguments give the same tasks on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/result.h"

namespace headrace {

struct EvalQuestion {
  std::string text;  ///< follows the context
  /// One: what the model should write. Several: it chooses, by probability.
  std::vector<std::string> answers;
  std::size_t right = 0;  ///< of `answers`
};

/// Read once for all of its questions, each of which follows it alone.
struct EvalContext {
  std::string text;
  std::vector<EvalQuestion> questions;
};

struct EvalTask {
  std::string name;
  std::vector<EvalContext> contexts;

  std::size_t questions() const;
};

struct EvalTaskSetup {
  /// What the facts lie in, over and over if need be. Not empty.
  std::span<const std::string> sentences;
  std::uint32_t context_tokens = 0;  ///< most of a context, a question and its answer
  std::uint32_t items = 0;           ///< questions of a task
  std::uint64_t seed = 0;
  std::function<std::size_t(std::string_view text)> count_tokens;
};

/// Those that make_eval_task() makes.
std::vector<std::string> eval_task_names();

/// `name`: one of them. Errors: invalid_argument (too few tokens for the facts).
Result<EvalTask> make_eval_task(const std::string& name, const EvalTaskSetup& setup);

/// The sentences of a text, with single blanks between words; parts of one that is very long.
std::vector<std::string> split_sentences(std::string_view text);

/// So many sentences of no meaning.
std::vector<std::string> made_up_sentences(std::size_t count, std::uint64_t seed);

}  // namespace headrace
