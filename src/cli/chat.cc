#include <CLI/CLI.hpp>
#include <csignal>
#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/purge_flags.h"
#include "cli/repetition_report.h"
#include "cli/sampling_flags.h"
#include "cli/zone_flags.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Type a line to say something. /reset starts anew, /help lists what there is, /exit or Ctrl-D\n"
    "ends. Ctrl-C stops an answer; at the prompt it ends the program.\n"
    "\n"
    "Examples:\n"
    "  headrace chat -m model.gguf\n"
    "  headrace chat -m model.gguf --session monday --kv-disk ~/kv:20GiB\n"
    "  headrace chat -m model.gguf --temperature 0.7 --kv-memory 256MiB\n"
    "  printf 'Hello!\\nTell me more.\\n' | headrace chat -m model.gguf > answers.txt";

constexpr const char* help =
    "  /reset   forget the conversation\n"
    "  /help    this list\n"
    "  /exit    end (also Ctrl-D)\n"
    "  Ctrl-C   stop the answer\n";

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  ZoneFlags zones;
  PurgeFlags purge;
  std::string session;
};

class ChatLoop {
 public:
  ChatLoop(CommandContext& context, Engine& engine, const ChatFlags& flags)
      : context_(context),
        conversation_(engine, flags.zones),
        options_(flags.sampling.options),
        purge_(flags.purge),
        session_(flags.session) {
    if (purge_.topic_shift) {
      conversation_.watch_topics([this](const Result<std::uint64_t>& purged) {
        say_purged("a new topic; of the one before ", purged);
      });
    }
  }

  Result<void> resume() {
    if (session_.empty()) return {};
    HEADRACE_TRY(conversation_.resume(session_));
    if (conversation_.messages() > 0) {
      context_.err << "(session " << session_ << " goes on after " << conversation_.messages()
                   << " messages)" << std::endl;
    }
    return {};
  }

  /// Reads lines until the input or the user ends. Returns the exit code.
  int run() {
    std::string line;
    while (read_line(line)) {
      if (line == "/exit" || line == "/quit") break;
      if (line.empty()) continue;
      if (line[0] == '/') {
        obey(line);
        continue;
      }
      const int code = answer(line);
      if (code != exit_ok) return code;
    }
    // Ctrl-C at the prompt is an ordinary way to leave; being told to end by someone else is not.
    const int signal = context_.interrupts.signal();
    return signal == 0 || signal == SIGINT ? exit_ok : context_.interrupts.exit_code();
  }

 private:
  bool read_line(std::string& line) {
    if (context_.in_is_terminal) context_.err << "> " << std::flush;
    const bool read =
        static_cast<bool>(std::getline(context_.in, line)) && !context_.interrupts.pending();
    if (!read && context_.in_is_terminal) context_.err << std::endl;
    if (read && !line.empty() && line.back() == '\r') line.pop_back();
    return read;
  }

  void obey(const std::string& line) {
    if (line == "/reset") {
      conversation_.reset();
      context_.err << "(a new conversation)" << std::endl;
    } else {
      if (line != "/help") context_.err << "there is no " << line << " here:\n";
      context_.err << help << std::flush;
    }
  }

  /// Something other than exit_ok ends the loop.
  int answer(const std::string& line) {
    Progress progress(context_, "reading");
    options_.on_progress = [&](std::uint32_t done, std::uint32_t total) {
      progress.update(done, total);
      return !context_.interrupts.pending();
    };
    options_.on_text = [&](std::string_view piece) {
      progress.finish();
      context_.out << piece << std::flush;
      return context_.out.good() && !context_.interrupts.pending();
    };
    const Result<Generation> generation = conversation_.say(line, options_);
    progress.finish();
    if (!context_.out.good()) return report_error(context_.err, output_failed(), Phase::running);
    if (generation.ok()) warn_of_new_repetitions();

    const bool stopped = context_.interrupts.pending();
    if (stopped && context_.interrupts.signal() != SIGINT) return context_.interrupts.exit_code();
    if (!generation.ok() && !(stopped && generation.error().code == ErrorCode::cancelled)) {
      const int code = report_error(context_.err, generation.error(), Phase::running);
      // A turn that does not fit is no reason to lose the conversation; scripts, however, want to
      // know.
      return code == exit_usage && context_.in_is_terminal ? exit_ok : code;
    }
    const bool answered = generation.ok() && !(stopped && generation->tokens.empty());
    if (answered) context_.out << std::endl;
    if (answered && !session_.empty()) {
      const Result<void> saved = conversation_.save();
      if (!saved.ok()) return report_error(context_.err, saved.error(), Phase::running);
    }
    if (answered) purge();
    if (stopped) {
      context_.interrupts.clear();
      context_.err << (answered ? "(stopped)" : "(stopped; what you said is taken back)")
                   << std::endl;
    } else if (generation->finish_reason == "length") {
      context_.err << "(cut after " << generation->tokens.size() << " tokens; see -n and --context)"
                   << std::endl;
    }
    return exit_ok;
  }

  void warn_of_new_repetitions() {
    std::vector<Repetition> found = find_repetitions(conversation_.prompt());
    std::erase_if(found, [&](const Repetition& repetition) {
      return repetition.first_token + repetition.tokens <= conversation_.prompt_tokens_before();
    });
    warn_of_repetitions(context_.err, found);
  }

  /// A purge that fails has lost nothing, so the conversation goes on.
  void purge() {
    if (purge_.every == 0 || ++answers_ % purge_.every != 0) return;
    say_purged("", conversation_.purge(purge_.options));
  }

  void say_purged(const char* why, const Result<std::uint64_t>& purged) {
    context_.err << "(" << why;
    if (purged.ok()) {
      context_.err << format_byte_count(*purged) << " left memory)" << std::endl;
    } else {
      context_.err << "nothing left memory: " << purged.error().message << ")" << std::endl;
    }
  }

  CommandContext& context_;
  Conversation conversation_;
  GenerateOptions options_;
  const PurgeFlags purge_;
  std::uint32_t answers_ = 0;
  const std::string session_;
};

int chat(const ChatFlags& flags, CommandContext& context) {
  const auto fail = [&](const Error& error) {
    return report_error(context.err, error, Phase::opening);
  };
  const Result<EngineOptions> options = flags.engine.options();
  if (!options.ok()) return fail(options.error());
  if (const Result<void> checked = flags.purge.check(*options); !checked.ok())
    return fail(checked.error());
  const auto engine = context.open_engine(*options);
  if (!engine.ok()) return fail(engine.error());
  if (!(*engine)->model().has_chat_template) {
    return fail({ErrorCode::unsupported,
                 "this model has no chat template; use `headrace run --raw` instead"});
  }
  if (context.in_is_terminal)
    context.err << (*engine)->model().name << "; /help says what there is\n";
  ChatLoop loop(context, **engine, flags);
  const Result<void> resumed = loop.resume();
  return resumed.ok() ? loop.run() : fail(resumed.error());
}

}  // namespace

Command add_chat(CLI::App& program) {
  const auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = program.add_subcommand("chat", "A conversation in the terminal");
  flags->engine.add_to(*command, 0);
  flags->sampling.add_to(*command, 0);
  flags->zones.add_to(*command, flags->engine, false);
  flags->purge.add_to(*command, flags->engine);
  add_session_option(*command, flags->session);
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return chat(*flags, context); }};
}

}  // namespace headrace
