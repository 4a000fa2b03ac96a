#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "tier/scrub.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Reads every record of every segment. Exit codes: 0 all is whole, 1 damage was found "
    "(repaired\n"
    "or not) or the directory cannot be read, 2 there is no such directory.\n"
    "\n"
    "Examples:\n"
    "  headrace verify kv\n"
    "  headrace verify kv --repair";

struct VerifyFlags {
  std::string directory;
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

int verify(const VerifyFlags& flags, CommandContext& context) {
  const auto report = scrub_directory(context.env, flags.directory, flags.repair);
  if (!report.ok()) return report_error(context.err, report.error(), Phase::running);
  if (flags.json) {
    context.out << to_json(*report, flags.directory) << std::endl;
  } else {
    print_tables(context.out, *report);
  }
  return report->damaged.empty() ? exit_ok : exit_failure;
}

}  // namespace

Command add_verify(CLI::App& program) {
  const auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = program.add_subcommand(
      "verify", "Reads all that a --kv-disk directory keeps, and says what is damaged");
  command->add_option("directory", flags->directory, "A directory of --kv-disk")
      ->required()
      ->type_name("DIR");
  command->add_flag("--repair", flags->repair, "Put what is damaged in order");
  command->add_flag("--json", flags->json, "One JSON object on stdout");
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return verify(*flags, context); }};
}

}  // namespace headrace
