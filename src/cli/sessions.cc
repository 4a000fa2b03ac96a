#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "cache/session_store.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/figures.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Sessions are saved by `run` and `chat` with --session NAME.\n"
    "\n"
    "Examples:\n"
    "  headrace sessions list --kv-disk ~/kv\n"
    "  headrace sessions fork monday plan-b --kv-disk ~/kv\n"
    "  headrace sessions delete monday --purge --kv-disk ~/kv\n"
    "  headrace sessions export monday monday.hrs --kv-disk ~/kv\n"
    "  headrace sessions import monday.hrs --kv-disk /mnt/kv";

struct SessionsFlags {
  std::string disk, name, other;
  bool purge = false, json = false;
};

std::string format_time(std::uint64_t unix_seconds) {
  const std::chrono::sys_seconds time{std::chrono::seconds(unix_seconds)};
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  std::array<char, 64> text{};
  const int size = std::snprintf(
      text.data(), text.size(), "%04d-%02u-%02u %02d:%02d UTC", static_cast<int>(date.year()),
      static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
      static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()));
  return {text.data(), static_cast<std::size_t>(size)};
}

std::uint64_t kv_bytes(const SessionRecord& session) {
  return session.blocks.size() * session.layers * session.shape.bytes();
}

nlohmann::ordered_json to_json(const SessionRecord& session) {
  return {{"name", session.name},
          {"model", session.model_name},
          {"tenant", session.tenant},
          {"tokens", session.tokens.size()},
          {"kv_type", to_string(session.shape.type)},
          {"kv_bytes", kv_bytes(session)},
          {"created", session.created_seconds},
          {"saved", session.saved_seconds}};
}

/// For a person or, with --json, for a program.
void print(const SessionsFlags& flags, std::ostream& out,
           const std::vector<SessionRecord>& sessions) {
  if (flags.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const SessionRecord& session : sessions) list.push_back(to_json(session));
    constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;
    out << list.dump(-1, ' ', false, replace) << std::endl;
    return;
  }
  Table table;
  for (const SessionRecord& session : sessions) {
    table.row(session.name, format_count(session.tokens.size()) + " tokens, " +
                                format_byte_count(kv_bytes(session)) + ", saved " +
                                format_time(session.saved_seconds) + ", " + session.model_name);
  }
  table.print(out);
}

void print_messages(std::ostream& out, const SessionRecord& session) {
  const auto note = nlohmann::json::parse(session.note, nullptr, false);
  if (!note.is_array()) return;
  for (const nlohmann::json& message : note) {
    out << "\n" << message.value("role", "") << ":\n" << message.value("content", "") << "\n";
  }
}

using Action = Result<void> (*)(SessionStore&, const SessionsFlags&, std::ostream& out);

Result<void> list(SessionStore& store, const SessionsFlags& flags, std::ostream& out) {
  HEADRACE_TRY_ASSIGN(const std::vector<SessionRecord> sessions, store.list());
  print(flags, out, sessions);
  return {};
}

Result<void> show(SessionStore& store, const SessionsFlags& flags, std::ostream& out) {
  HEADRACE_TRY_ASSIGN(const SessionRecord session, store.read(flags.name));
  print(flags, out, {session});
  if (!flags.json) print_messages(out, session);
  return {};
}

Result<void> fork(SessionStore& store, const SessionsFlags& flags, std::ostream&) {
  return store.fork(flags.name, flags.other);
}

Result<void> erase(SessionStore& store, const SessionsFlags& flags, std::ostream&) {
  return store.erase(flags.name, flags.purge);
}

Result<void> export_to(SessionStore& store, const SessionsFlags& flags, std::ostream&) {
  return store.export_to(flags.name, flags.other);
}

Result<void> import_from(SessionStore& store, const SessionsFlags& flags, std::ostream& out) {
  HEADRACE_TRY_ASSIGN(const std::string name, store.import_from(flags.other));
  out << name << std::endl;
  return {};
}

int sessions(const SessionsFlags& flags, Action action, CommandContext& context) {
  const auto fail = [&](const Error& error) {
    return report_error(context.err, error, Phase::opening);
  };
  const Result<DiskPlace> place = parse_disk_place(flags.disk);
  if (!place.ok()) return fail(place.error());
  const auto store = SessionStore::open(context.env, place->directory);
  if (!store.ok()) return fail(store.error());
  const Result<void> outcome = action(**store, flags, context.out);
  if (!outcome.ok()) return fail(outcome.error());
  return context.out.good() ? exit_ok : fail(output_failed());
}

}  // namespace

Command add_sessions(CLI::App& program) {
  const auto flags = std::make_shared<SessionsFlags>();
  const auto chosen = std::make_shared<Action>(list);
  CLI::App* command = program.add_subcommand("sessions", "Saved conversations: list, copy, move");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, Action action) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("--kv-disk", flags->disk, "The directory that they were saved in")
        ->required()
        ->type_name("DIR");
    sub->callback([chosen, action] { *chosen = action; });
    return sub;
  };
  const auto add_name = [&](CLI::App* sub) {
    sub->add_option("name", flags->name, "The session")->required();
    return sub;
  };
  add("list", "All of them", list)->add_flag("--json", flags->json, "One JSON array");
  add_name(add("show", "One of them, with its messages", show))
      ->add_flag("--json", flags->json, "One JSON array");
  add_name(add("fork", "A copy under another name, which shares what is stored", fork))
      ->add_option("new", flags->other, "The name of the copy")
      ->required();
  add_name(add("delete", "Delete one; what is stored of its text may serve others", erase))
      ->add_flag("--purge", flags->purge, "Delete what is stored of its text too");
  add_name(add("export", "Write one into a file", export_to))
      ->add_option("file", flags->other, "A new file")
      ->required();
  add("import", "Take one from a file", import_from)
      ->add_option("file", flags->other, "What export wrote")
      ->required();
  command->footer(footer);
  return {command,
          [flags, chosen](CommandContext& context) { return sessions(*flags, *chosen, context); }};
}

}  // namespace headrace
