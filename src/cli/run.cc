#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/engine_flags.h"
#include "cli/eviction_log.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/prompt_text.h"
#include "cli/repetition_report.h"
#include "cli/run_report.h"
#include "cli/sampling_flags.h"
#include "cli/zone_flags.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Examples:\n"
    "  headrace run -m model.gguf -p \"Why is the sky blue?\"\n"
    "  headrace run -m model.gguf -f book.txt -p \"Who is the narrator?\" --kv-memory 64MiB\n"
    "  git diff | headrace run -m model.gguf -f - -p \"Summarise this change.\" -n 200\n"
    "  headrace run -m model.gguf --raw -p \"1 2 3 4 5\" -n 16 --json 2>/dev/null";

struct RunFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  ZoneFlags zones;
  std::string file, prompt, session, eviction_log;
  bool raw = false, chat = false, json = false;
};

bool uses_template(const Engine& engine, const RunFlags& flags) {
  return flags.chat || (!flags.raw && engine.model().has_chat_template);
}

Result<std::vector<TokenId>> prompt_tokens(const Engine& engine, const RunFlags& flags,
                                           const std::string& text) {
  std::vector<TokenId> tokens;
  if (uses_template(engine, flags)) {
    const std::vector<ChatMessage> messages = {{"user", text}};
    HEADRACE_TRY_ASSIGN(tokens, engine.chat_prompt(messages));
  } else {
    HEADRACE_TRY_ASSIGN(tokens, engine.tokenize(text, {}));
  }
  if (tokens.empty()) {
    return Error{ErrorCode::invalid_argument, "the prompt has no tokens; give it some text"};
  }
  return tokens;
}

/// What came of a prompt.
struct Answer {
  Generation generation;
  std::vector<Repetition> repetitions;  // of the prompt
};

/// Says `text` in the conversation of --session, and saves it.
Result<Answer> answer_in_session(Engine& engine, const RunFlags& flags, const std::string& text,
                                 const GenerateOptions& options) {
  Conversation conversation(engine, flags.zones);
  HEADRACE_TRY(conversation.resume(flags.session));
  HEADRACE_TRY_ASSIGN(Generation generation, conversation.say(text, options));
  HEADRACE_TRY(conversation.save());
  return Answer{std::move(generation), find_repetitions(conversation.prompt())};
}

/// Continues the text of --session with `text` as it is, and saves it.
Result<Answer> continue_session(Engine& engine, const RunFlags& flags, const std::string& text,
                                const GenerateOptions& options) {
  Result<SessionState> state = engine.read_session(flags.session);
  if (!state.ok() && state.error().code != ErrorCode::not_found) return std::move(state).error();
  HEADRACE_TRY_ASSIGN(const std::unique_ptr<Sequence> sequence, engine.new_sequence());
  if (state.ok()) HEADRACE_TRY(sequence->append(state->tokens, options.on_progress, nullptr));
  HEADRACE_TRY_ASSIGN(const std::vector<TokenId> prompt,
                      engine.tokenize(text, {.add_special = !state.ok()}));
  HEADRACE_TRY(flags.zones.make_zones(engine, *sequence, prompt));
  HEADRACE_TRY_ASSIGN(Generation generation, sequence->generate(prompt, options));
  HEADRACE_TRY(engine.save_session(flags.session, *sequence, ""));
  return Answer{std::move(generation), find_repetitions(prompt)};
}

/// Generates; streams the text to `text_out`. After a write that failed, `text_out` says so.
Result<Answer> generate(CommandContext& context, Engine& engine, const RunFlags& flags,
                        const std::string& text, std::ostream& text_out) {
  Progress progress(context, "reading");
  GenerateOptions options = flags.sampling.options;
  options.on_progress = [&](std::uint32_t done, std::uint32_t total) {
    progress.update(done, total);
    return !context.interrupts.pending();
  };
  options.on_text = [&](std::string_view piece) {
    progress.finish();
    text_out << piece << std::flush;
    return text_out.good() && !context.interrupts.pending();
  };
  if (!flags.session.empty()) {
    return uses_template(engine, flags) ? answer_in_session(engine, flags, text, options)
                                        : continue_session(engine, flags, text, options);
  }
  HEADRACE_TRY_ASSIGN(const std::vector<TokenId> prompt, prompt_tokens(engine, flags, text));
  HEADRACE_TRY_ASSIGN(const std::unique_ptr<Sequence> sequence, engine.new_sequence());
  HEADRACE_TRY(flags.zones.make_zones(engine, *sequence, prompt));
  HEADRACE_TRY_ASSIGN(Generation generation, sequence->generate(prompt, options));
  return Answer{std::move(generation), find_repetitions(prompt)};
}

int run(const RunFlags& flags, CommandContext& context) {
  const auto fail = [&](const Error& error, Phase phase) {
    return report_error(context.err, error, phase);
  };
  Result<EngineOptions> options = flags.engine.options();
  if (!options.ok()) return fail(options.error(), Phase::opening);
  std::unique_ptr<EvictionLog> log;
  if (!flags.eviction_log.empty()) {
    auto opened = EvictionLog::open(context.env, flags.eviction_log);
    if (!opened.ok()) return fail(opened.error(), Phase::opening);
    log = std::move(*opened);
    options->on_eviction = log->callback();
  }
  const Result<std::string> text = read_prompt_text(context, flags.file, flags.prompt);
  if (!text.ok()) return fail(text.error(), Phase::opening);
  const auto engine = context.open_engine(*options);
  if (!engine.ok()) return fail(engine.error(), Phase::opening);
  if (log != nullptr) log->set_engine(engine->get());

  std::ostream& text_out = flags.json ? context.err : context.out;
  const Result<Answer> answer = generate(context, **engine, flags, *text, text_out);
  if (!text_out.good()) return fail(output_failed(), Phase::running);
  if (!answer.ok() && answer.error().code == ErrorCode::cancelled && context.interrupts.pending())
    return context.interrupts.exit_code();
  if (!answer.ok()) return fail(answer.error(), Phase::running);
  if (log != nullptr) {
    if (const Result<void> logged = log->finish(); !logged.ok())
      return fail(logged.error(), Phase::running);
  }

  text_out << std::endl;
  const std::size_t threads =
      options->threads != 0 ? options->threads : context.env.hardware_threads();
  const RunReport report = {**engine, *options, answer->generation, threads, answer->repetitions};
  warn_of_repetitions(context.err, report.repetitions);
  print_summary(context.err, report);
  if (flags.json) context.out << to_json(report) << std::endl;
  if (!context.out.good()) return fail(output_failed(), Phase::running);
  return context.interrupts.pending() ? context.interrupts.exit_code() : exit_ok;
}

}  // namespace

Command add_run(CLI::App& program) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* command = program.add_subcommand("run", "Read a prompt, write the model's answer");
  command->add_option("-f,--file", flags->file, "A text to read first; - is standard input")
      ->type_name("FILE");
  command->add_option("-p,--prompt", flags->prompt, "The prompt; after -f's text and a blank line")
      ->type_name("TEXT");
  CLI::Option* raw = command->add_flag("--raw", flags->raw,
                                       "Continue the text as it is, without the chat template");
  command->add_flag("--chat", flags->chat, "Use the model's chat template (default, if it has one)")
      ->excludes(raw);
  command
      ->add_option("--eviction-log", flags->eviction_log,
                   "A file that gets a line for all that leaves the memory for keys and values: "
                   "what, why and where it can be read from")
      ->type_name("FILE");
  command->add_flag(
      "--json", flags->json,
      "One JSON object with text, tokens and figures on stdout; everything else goes to stderr");
  flags->engine.add_to(*command, 0);
  flags->sampling.add_to(*command, 128);
  flags->zones.add_to(*command, flags->engine, true);
  add_session_option(*command, flags->session);
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return run(*flags, context); }};
}

}  // namespace headrace
