#include "cli/eval_run.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cli/scoring.h"

namespace headrace {
namespace {

/// A question and one of its answers in tokens. They are tokenised together, as a text would be.
struct Asked {
  std::vector<TokenId> question, answer;
};

Result<Asked> tokenize_together(const Engine& engine, const std::string& question,
                                const std::string& answer) {
  const TokenizeOptions plain = {.add_special = false};
  Asked asked;
  HEADRACE_TRY_ASSIGN(asked.question, engine.tokenize(question, plain));
  HEADRACE_TRY_ASSIGN(const std::vector<TokenId> both, engine.tokenize(question + answer, plain));
  const auto parted = std::ranges::mismatch(asked.question, both);
  asked.answer.assign(parted.in2, both.end());
  asked.question.erase(parted.in1, asked.question.end());
  return asked;
}

class Examiner {
 public:
  Examiner(Engine& engine, const EvalRunOptions& options, EvalAnswers& answers)
      : engine_(engine), options_(options), answers_(answers) {}

  Result<void> read(const EvalContext& context) {
    context_.reset();  // one at a time: the next may need its memory
    HEADRACE_TRY_ASSIGN(context_, engine_.new_sequence());
    HEADRACE_TRY_ASSIGN(const std::vector<TokenId> tokens, engine_.tokenize(context.text, {}));
    return context_->append(
        tokens, [&](std::uint32_t, std::uint32_t) { return options_.go_on(); }, nullptr);
  }

  Result<bool> is_right(const EvalQuestion& question) {
    if (question.answers.size() == 1) return writes(question);
    return chooses(question);
  }

 private:
  Result<void> decode(Sequence& sequence, std::span<const TokenId> tokens) {
    const std::chrono::nanoseconds start = options_.now();
    for (const TokenId token : tokens) {
      if (!options_.go_on()) return Error{ErrorCode::cancelled, "stopped"};
      HEADRACE_TRY(sequence.decode(token));
    }
    answers_.seconds += std::chrono::duration<double>(options_.now() - start).count();
    answers_.steps += tokens.size();
    return {};
  }

  Result<bool> writes(const EvalQuestion& question) {
    HEADRACE_TRY_ASSIGN(const Asked asked,
                        tokenize_together(engine_, question.text, question.answers[0]));
    HEADRACE_TRY_ASSIGN(const auto sequence, context_->fork());
    HEADRACE_TRY(decode(*sequence, asked.question));
    for (std::size_t i = 0; i < asked.answer.size(); ++i) {
      if (i > 0) HEADRACE_TRY(decode(*sequence, {&asked.answer[i - 1], 1}));
      if (likeliest(sequence->logits()) != asked.answer[i]) return false;
    }
    return true;
  }

  Result<bool> chooses(const EvalQuestion& question) {
    std::unique_ptr<Sequence> begun;  // has read the question
    std::vector<TokenId> begun_question;
    std::size_t best = 0;
    double best_score = 0;
    for (std::size_t choice = 0; choice < question.answers.size(); ++choice) {
      const std::string& answer = question.answers[choice];
      HEADRACE_TRY_ASSIGN(const Asked asked, tokenize_together(engine_, question.text, answer));
      if (!begun || asked.question != begun_question) {
        HEADRACE_TRY_ASSIGN(begun, context_->fork());
        HEADRACE_TRY(decode(*begun, asked.question));
        begun_question = asked.question;
      }
      HEADRACE_TRY_ASSIGN(const auto sequence, begun->fork());
      double score = 0;
      for (std::size_t i = 0; i < asked.answer.size(); ++i) {
        if (i > 0) HEADRACE_TRY(decode(*sequence, {&asked.answer[i - 1], 1}));
        score += log_probability(sequence->logits(), asked.answer[i]);
      }
      score /= static_cast<double>(answer.size());
      if (choice == 0 || score > best_score) {
        best = choice;
        best_score = score;
      }
    }
    return best == question.right;
  }

  Engine& engine_;
  const EvalRunOptions& options_;
  EvalAnswers& answers_;
  std::unique_ptr<Sequence> context_;
};

}  // namespace

Result<EvalAnswers> run_eval_task(Engine& engine, const EvalTask& task,
                                  const EvalRunOptions& options) {
  EvalAnswers answers;
  Examiner examiner(engine, options, answers);
  for (const EvalContext& context : task.contexts) {
    bool is_read = false;
    for (const EvalQuestion& question : context.questions) {
      bool right = false;
      if (options.wanted.empty() || options.wanted[answers.right.size()]) {
        if (!std::exchange(is_read, true)) HEADRACE_TRY(examiner.read(context));
        HEADRACE_TRY_ASSIGN(right, examiner.is_right(question));
      }
      answers.right.push_back(right);
    }
  }
  return answers;
}

}  // namespace headrace
