#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/prompt_text.h"
#include "cli/text_grid.h"
#include "cli/verify_model.h"
#include "tier/scrub.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Reads every record of every segment. Exit codes: 0 all is whole, 1 damage was found "
    "(repaired\n"
    "or not) or the directory cannot be read, 2 there is no such directory.\n"
    "\n"
    "With --model it reads a text with all keys and values in memory, and again with them on "
    "disk,\n"
    "encoded, left by an earlier engine and so on. Exit code 1: a logit differs.\n"
    "\n"
    "Examples:\n"
    "  headrace verify kv\n"
    "  headrace verify kv --repair\n"
    "  headrace verify --model model.gguf\n"
    "  headrace verify --model model.gguf -f book.txt --context 8192";

// Repeated until it fills the context.
constexpr const char* default_text =
    "A headrace is the channel that carries water from a river to the wheel of a mill. What the\n"
    "wheel does not need runs over a weir and back into the river; what it will need waits in a\n"
    "pond above the gate. The miller looks at three things: how much water there is, how fast it\n"
    "comes, and how much the stones can use. In a dry summer he grinds at night, when the pond "
    "has\n"
    "filled; in spring he opens both gates and keeps only what the banks can hold.\n\n"
    "    int gate(int level, int wanted) { return level < wanted ? level : wanted; }\n\n";

struct VerifyFlags {
  std::string directory;
  std::string file;
  std::string kv_type;
  EngineOptions engine;
  bool repair = false;
  bool json = false;
};

// By RecordKind.
constexpr const char* kind_names[] = {"pages", "blocks", "sessions", "lists of erased"};
constexpr const char* kind_keys[] = {"pages", "blocks", "sessions", "erased_lists"};

void print_tables(std::ostream& out, const ScrubReport& report) {
  Table table;
  table.row("segments", format_count(report.segments) + ", " + format_byte_count(report.bytes));
  for (std::size_t kind = 0; kind < report.records.size(); ++kind) {
    table.row(kind_names[kind], format_count(report.records[kind]));
  }
  table.row("other files", format_count(report.foreign_files.size()));
  table.row("damaged", format_count(report.damaged.size()));
  table.print(out);
  for (const ScrubDamage& damage : report.damaged) {
    out << damage.file << " at byte " << damage.offset << ": " << damage.reason << "\n";
  }
  if (!report.damaged.empty()) {
    out << (report.is_repaired ? "Repaired: none of it will be used.\n"
                               : "None of it will be used. --repair puts it in order.\n");
  }
}

std::string to_json(const ScrubReport& report, const std::string& directory) {
  nlohmann::ordered_json damaged = nlohmann::ordered_json::array();
  for (const ScrubDamage& damage : report.damaged) {
    damaged.push_back(
        {{"file", damage.file}, {"offset", damage.offset}, {"reason", damage.reason}});
  }
  nlohmann::ordered_json json = {{"directory", directory},
                                 {"segments", report.segments},
                                 {"bytes", report.bytes},
                                 {"record_bytes", report.record_bytes}};
  for (std::size_t kind = 0; kind < report.records.size(); ++kind) {
    json[kind_keys[kind]] = report.records[kind];
  }
  json["damaged"] = damaged;
  json["foreign_files"] = report.foreign_files;
  json["repaired"] = report.is_repaired;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int verify_directory(const VerifyFlags& flags, CommandContext& context) {
  const auto report = scrub_directory(context.env, flags.directory, flags.repair);
  if (!report.ok()) return report_error(context.err, report.error(), Phase::running);
  if (flags.json) {
    context.out << to_json(*report, flags.directory) << std::endl;
  } else {
    print_tables(context.out, *report);
  }
  return report->damaged.empty() ? exit_ok : exit_failure;
}

void print(const VerifyFlags& flags, std::ostream& out, const std::vector<TierCheck>& checks) {
  if (flags.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const TierCheck& check : checks) {
      list.push_back({{"tier", check.tier},
                      {"tokens", check.tokens},
                      {"restored_pages", check.restored_pages},
                      {"rows_compared", check.rows_compared},
                      {"rows_equal", check.rows_equal}});
    }
    out << list.dump() << std::endl;
    return;
  }
  TextGrid grid({"tier", "tokens", "restored pages", "equal bits"});
  for (const TierCheck& check : checks) {
    grid.row(
        {check.tier, format_count(check.tokens), format_count(check.restored_pages),
         format_count(check.rows_equal) + " of " + format_count(check.rows_compared) + " rows"});
  }
  grid.print(out);
}

int verify_with_model(const VerifyFlags& flags, CommandContext& context) {
  VerifyModelOptions options = {.engine = flags.engine, .text = default_text};
  if (!flags.kv_type.empty()) {
    const Result<KvType> type = parse_kv_type(flags.kv_type);
    if (!type.ok()) return report_error(context.err, type.error(), Phase::opening);
    options.engine.kv.type = *type;
  }
  if (!flags.file.empty()) {
    Result<std::string> text = read_text_file(context, flags.file);
    if (!text.ok()) return report_error(context.err, text.error(), Phase::opening);
    options.text = std::move(text).value();
  }
  const auto checks = verify_model(context, options);
  if (!checks.ok() && checks.error().code == ErrorCode::cancelled && context.interrupts.pending()) {
    return context.interrupts.exit_code();
  }
  if (!checks.ok()) return report_error(context.err, checks.error(), Phase::opening);
  print(flags, context.out, *checks);
  if (!context.out.good()) return report_error(context.err, output_failed(), Phase::running);
  std::string different;
  for (const TierCheck& check : *checks) {
    if (check.rows_equal == check.rows_compared) continue;
    different += (different.empty() ? "" : "; ") + check.tier;
  }
  if (different.empty()) return exit_ok;
  context.err << "headrace: error: logits differ from those with everything in memory: "
              << different << std::endl;
  return exit_failure;
}

int verify(const VerifyFlags& flags, CommandContext& context) {
  if (flags.directory.empty() == flags.engine.model_path.empty()) {
    return report_error(context.err,
                        {ErrorCode::invalid_argument,
                         "give either a directory of --kv-disk or --model, for example headrace "
                         "verify kv"},
                        Phase::opening);
  }
  return flags.directory.empty() ? verify_with_model(flags, context)
                                 : verify_directory(flags, context);
}

}  // namespace

Command add_verify(CLI::App& program) {
  const auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = program.add_subcommand(
      "verify", "Checks what a --kv-disk directory keeps, or that no tier changes an answer");
  CLI::Option* directory =
      command->add_option("directory", flags->directory, "A directory of --kv-disk")
          ->type_name("DIR");
  command->add_flag("--repair", flags->repair, "Put what is damaged in order")->needs(directory);
  command->add_flag("--json", flags->json, "One JSON object, of --model one array, on stdout");

  constexpr std::uint32_t default_context = 2048;
  constexpr std::uint32_t default_block_tokens = 64;
  flags->engine.context = default_context;
  flags->engine.sequences = 1;
  flags->engine.kv.tokens_per_block = default_block_tokens;
  CLI::Option* model =
      command->add_option("-m,--model", flags->engine.model_path, "The model, a GGUF file")
          ->type_name("FILE")
          ->excludes(directory);
  const auto add_of_model = [&](const char* name, auto& value, const char* help, const char* type) {
    command->add_option(name, value, help)->type_name(type)->needs(model);
  };
  add_of_model("-f,--file", flags->file,
               "A text to read, over again until it is long enough; - is standard input "
               "(default: one of ours)",
               "FILE");
  add_of_model("--context", flags->engine.context, "Tokens that are read (default: 2048)", "N");
  add_of_model("--threads", flags->engine.threads, "Threads that compute (default: one per core)",
               "N");
  add_of_model("--kv-type", flags->kv_type, "How keys and values are kept (default: i16)", "TYPE");
  add_of_model("--block-tokens", flags->engine.kv.tokens_per_block,
               "Tokens of a block (default: 64)", "N");
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return verify(*flags, context); }};
}

}  // namespace headrace
