#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_workload.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/eval_choices.h"
#include "cli/eval_mode.h"
#include "cli/eval_report.h"
#include "cli/eval_run.h"
#include "cli/eval_task.h"
#include "cli/exit_code.h"
#include "cli/output_file.h"
#include "cli/prompt_text.h"
#include "cli/score_text.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Each mode reads a context, compresses it if it does so, and only then is asked. The full "
    "cache\n"
    "is asked first, and the others are held against what it answers rightly.\n"
    "\n"
    "Tasks: passkey (a number in a text), needle (four of them, with names), variables (which are\n"
    "assigned to one another), words (which are the frequent ones in a list), induction (random\n"
    "strings, copied), perplexity (of the text of -f), and choices (the file of --choices).\n"
    "Modes: exact (the full cache), kv-f16 and kv-q8 (other KV types), lossless, q8, k8v4, q4 and\n"
    "q4-delta (codecs), recall and recall-16 (about 1/11 and 1/16 of 8,192 tokens is\n"
    "read), recall-layer (one choice for all heads), window and sparse (an eighth), eighth "
    "(memory\n"
    "for an eighth, the rest on disk), and such as recall+q4.\n"
    "\n"
    "Examples:\n"
    "  headrace eval -m model.gguf\n"
    "  headrace eval -m model.gguf -f book.txt --tasks needle,perplexity --modes recall,recall+q4\n"
    "  headrace eval -m model.gguf --choices hellaswag.jsonl --tasks choices --json";

constexpr const char* perplexity_task = "perplexity";
constexpr const char* choices_task = "choices";
/// Scored at the end of a text of --context tokens.
constexpr std::uint32_t scored_tokens_most = 512;

struct EvalFlags {
  EngineOptions engine;
  std::string kv_type, file, choices, markdown, plots;
  std::vector<std::string> tasks, modes;
  std::uint32_t items = 8;
  std::uint64_t seed = 1;
  bool json = false;
};

struct EvalPlan {
  std::vector<EvalMode> modes;  // the full cache first
  std::vector<std::string> task_names;
  std::string text;  // of -f; empty: none
  std::string choices;

  bool has(const char* task) const {
    return std::ranges::find(task_names, task) != task_names.end();
  }
};

class Evaluation {
 public:
  Evaluation(const EvalFlags& flags, EvalPlan plan, EvalReport& report, CommandContext& context)
      : flags_(flags), plan_(std::move(plan)), report_(report), context_(context) {}

  Result<void> run() {
    HEADRACE_TRY_ASSIGN(full_, context_.open_engine(plan_.modes[0].options));
    HEADRACE_TRY(make_tasks());
    for (const EvalMode& mode : plan_.modes) {
      context_.err << "headrace: eval: " << mode.name << std::endl;
      if (report_.results.empty()) {
        HEADRACE_TRY(measure(mode, *full_));
        continue;
      }
      const auto engine = context_.open_engine(mode.options);
      if (!engine.ok()) {
        context_.err << "headrace: eval: " << mode.name
                     << " is left out: " << engine.error().message << std::endl;
        continue;
      }
      HEADRACE_TRY(measure(mode, **engine));
    }
    return {};
  }

 private:
  Result<void> make_tasks() {
    const std::vector<std::string> sentences =
        plan_.text.empty() ? made_up_sentences(flags_.engine.context, flags_.seed)
                           : split_sentences(plan_.text);
    if (sentences.empty()) {
      return Error{ErrorCode::invalid_argument, "the text of -f has no words; give it a book"};
    }
    Result<void> tokenized;
    const EvalTaskSetup setup = {
        .sentences = sentences,
        .context_tokens = full_->context(),
        .items = flags_.items,
        .seed = flags_.seed,
        .count_tokens = [&](std::string_view text) -> std::size_t {
          const auto tokens = full_->tokenize(text, {.add_special = false});
          if (!tokens.ok()) tokenized = tokens.error();
          return tokens.ok() ? std::max<std::size_t>(tokens->size(), 1) : setup.context_tokens;
        }};
    for (const std::string& name : plan_.task_names) {
      if (name == perplexity_task) continue;
      HEADRACE_TRY_ASSIGN(EvalTask task,
                          name == choices_task
                              ? make_choices_task(plan_.choices, flags_.choices, setup)
                              : make_eval_task(name, setup));
      HEADRACE_TRY(tokenized);
      tasks_.push_back(std::move(task));
    }
    if (plan_.has(perplexity_task)) {
      HEADRACE_TRY_ASSIGN(text_tokens_, full_->tokenize(plan_.text, {}));
    }
    return {};
  }

  Result<void> measure(const EvalMode& mode, Engine& engine) {
    const bool is_full = &engine == full_.get();
    EvalResult result = {
        .mode = mode.name, .family = mode.family, .bits_a_value = mode.bits_a_value};
    std::uint64_t steps = 0;
    double seconds = 0;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      EvalRunOptions options = {.now = [&] { return context_.env.now(); },
                                .go_on = [&] { return !context_.interrupts.pending(); }};
      if (!is_full) options.wanted = solved_[i];
      HEADRACE_TRY_ASSIGN(EvalAnswers answers, run_eval_task(engine, tasks_[i], options));
      steps += answers.steps;
      seconds += answers.seconds;
      const auto right = static_cast<std::size_t>(std::ranges::count(answers.right, true));
      if (is_full) solved_.push_back(std::move(answers.right));
      result.scores.push_back(
          {.task = tasks_[i].name,
           .asked = tasks_[i].questions(),
           .solved = static_cast<std::size_t>(std::ranges::count(solved_[i], true)),
           .agreed = right});
    }
    if (seconds > 0) result.tokens_per_second = static_cast<double>(steps) / seconds;
    if (plan_.has(perplexity_task)) {
      HEADRACE_TRY_ASSIGN(result.text, score(engine, is_full ? nullptr : full_.get()));
    }
    result.kv = engine.kv_stats();
    report_.results.push_back(std::move(result));
    return {};
  }

  Result<Score> score(Engine& engine, Engine* full) {
    const ScoreTextOptions options = {
        .chunk_tokens = full_->context(),
        .chunks_max = 1,
        .last_tokens = std::min(scored_tokens_most, full_->context() / 2),
        .decodes = true,
        .now = [&] { return context_.env.now(); },
        .on_progress = [&](std::uint64_t, std::uint64_t) { return !context_.interrupts.pending(); },
    };
    HEADRACE_TRY_ASSIGN(const TextScore result, score_text(engine, full, text_tokens_, options));
    report_.text_tokens = static_cast<std::uint32_t>(result.score.tokens());
    return result.score;
  }

  const EvalFlags& flags_;
  const EvalPlan plan_;
  EvalReport& report_;
  CommandContext& context_;
  std::unique_ptr<Engine> full_;
  std::vector<EvalTask> tasks_;
  std::vector<std::vector<bool>> solved_;  // by the full cache, of each task
  std::vector<TokenId> text_tokens_;
};

Result<std::vector<std::string>> choose_tasks(const EvalFlags& flags) {
  std::vector<std::string> names = eval_task_names();
  if (flags.tasks.empty()) {
    if (!flags.file.empty()) names.emplace_back(perplexity_task);
    if (!flags.choices.empty()) names.emplace_back(choices_task);
    return names;
  }
  names.insert(names.end(), {perplexity_task, choices_task});
  HEADRACE_TRY_ASSIGN(std::vector<std::string> chosen, choose_names("task", flags.tasks, names));
  const auto is_chosen = [&](const char* task) {
    return std::ranges::find(chosen, task) != chosen.end();
  };
  if (is_chosen(perplexity_task) && flags.file.empty()) {
    return Error{ErrorCode::invalid_argument, "task perplexity needs a text; give it with -f"};
  }
  if (is_chosen(choices_task) && flags.choices.empty()) {
    return Error{ErrorCode::invalid_argument,
                 "task choices needs questions; give a file of them with --choices"};
  }
  return chosen;
}

Result<EvalPlan> make_plan(const EvalFlags& flags, CommandContext& context) {
  EvalPlan plan;
  HEADRACE_TRY_ASSIGN(plan.task_names, choose_tasks(flags));
  HEADRACE_TRY_ASSIGN(const ModelInfo model, context.inspect_model(flags.engine.model_path));
  EngineOptions options = flags.engine;
  if (!flags.kv_type.empty()) {
    HEADRACE_TRY_ASSIGN(options.kv.type, parse_kv_type(flags.kv_type));
  }
  options.sequences = eval_sequences;
  options.kv.reuse = false;  // else the memory of ended texts would count
  std::vector<std::string> names = {exact_mode};
  const std::vector<std::string> given =
      flags.modes.empty() ? default_eval_mode_names() : flags.modes;
  for (const std::string& name : given) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  for (const std::string& name : names) {
    HEADRACE_TRY_ASSIGN(EvalMode mode, make_eval_mode(name, options, model));
    plan.modes.push_back(std::move(mode));
  }
  if (!flags.file.empty()) {
    HEADRACE_TRY_ASSIGN(plan.text, read_text_file(context, flags.file));
  }
  if (plan.has(choices_task)) {
    HEADRACE_TRY_ASSIGN(plan.choices, read_text_file(context, flags.choices));
  }
  if (!flags.markdown.empty()) HEADRACE_TRY(expect_folder_of(context.env, flags.markdown));
  if (!flags.plots.empty()) HEADRACE_TRY(context.env.make_directories(flags.plots));
  return plan;
}

Result<void> write_outputs(Env& env, const EvalFlags& flags, const EvalReport& report) {
  if (!flags.markdown.empty()) {
    HEADRACE_TRY(write_file(env, flags.markdown, eval_markdown(report)));
  }
  if (flags.plots.empty()) return {};
  for (const auto& [name, svg] : eval_charts(report)) {
    HEADRACE_TRY(write_file(env, std::string(flags.plots).append("/").append(name), svg));
  }
  return {};
}

int eval(const EvalFlags& flags, CommandContext& context) {
  const auto fail = [&](const Error& error, Phase phase) {
    if (context.interrupts.pending()) return context.interrupts.exit_code();
    return report_error(context.err, error, phase);
  };
  EvalFlags filled = flags;
  if (filled.engine.threads == 0) {
    filled.engine.threads = static_cast<std::uint32_t>(context.env.hardware_threads());
  }
  Result<EvalPlan> plan = make_plan(filled, context);
  if (!plan.ok()) return fail(plan.error(), Phase::opening);
  const std::string& path = flags.engine.model_path;
  EvalReport report = {.model_file = path.substr(path.find_last_of('/') + 1),
                       .context_tokens = flags.engine.context,
                       .threads = filled.engine.threads,
                       .seed = flags.seed};
  const Result<void> ran = Evaluation(filled, std::move(*plan), report, context).run();
  if (!ran.ok()) return fail(ran.error(), Phase::opening);
  print_eval(flags.json ? context.err : context.out, report);
  if (flags.json) context.out << eval_json(report) << std::endl;
  const Result<void> written = write_outputs(context.env, flags, report);
  if (!written.ok()) return fail(written.error(), Phase::running);
  return exit_ok;
}

}  // namespace

Command add_eval(CLI::App& program) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = program.add_subcommand(
      "eval",
      "What codecs, KV types and recall cost and change: answers held against the full "
      "cache's");
  command->add_option("-m,--model", flags->engine.model_path, "The model, a GGUF file")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("-f,--file", flags->file,
                   "The text that facts lie in and that perplexity is of; - is standard input "
                   "(default: made up, and no perplexity)")
      ->type_name("FILE");
  flags->engine.context = 8192;
  command
      ->add_option("--context", flags->engine.context,
                   "Tokens of a context and a question (default: 8192)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_option("--tasks", flags->tasks, "Such as passkey,needle (default: all, see below)")
      ->delimiter(',')
      ->type_name("LIST");
  command->add_option("--modes", flags->modes, "Such as recall,q4 (default: see below)")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option("--choices", flags->choices,
                   "Questions in the form of HellaSwag, a line of JSON each: "
                   "{\"ctx\": ..., \"endings\": [...], \"label\": 0}")
      ->type_name("FILE");
  command->add_option("--items", flags->items, "Questions of each task (default: 8)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_option("--seed", flags->seed, "Of the questions (default: 1)")->type_name("N");
  command
      ->add_option("--kv-type", flags->kv_type,
                   "How keys and values are kept where a mode says nothing else: " +
                       kv_type_names() + " (default: " + to_string(KvOptions().type) + ")")
      ->type_name("TYPE");
  command
      ->add_option("--threads", flags->engine.threads,
                   "Threads that compute (default: one per core)")
      ->type_name("N");
  const std::string outputs = "Results, besides the table";
  command
      ->add_flag("--json", flags->json, "One JSON object on stdout; everything else goes to stderr")
      ->group(outputs);
  command->add_option("--markdown", flags->markdown, "The table as Markdown")
      ->type_name("FILE")
      ->group(outputs);
  command
      ->add_option("--plots", flags->plots,
                   "Charts of agreement and speed over what is kept and read, as SVG")
      ->type_name("DIR")
      ->group(outputs);
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return eval(*flags, context); }};
}

}  // namespace headrace
