#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/line_chart.h"
#include "cli/output_file.h"
#include "cli/text_grid.h"
#include "policy/trace_replay.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Examples:\n"
    "  headrace trace replay requests.jsonl\n"
    "  headrace trace replay requests.jsonl --policy lru,auto --capacity 500,1000,2000\n"
    "  headrace trace replay requests.jsonl --svg hits.svg --json > hits.json";

constexpr const char* replay_footer =
    "A line of a trace is a request:\n"
    "  {\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 20, \"hash_ids\": [1, 2, 3]}\n"
    "Equal ids are equal beginnings of a text, cut into blocks. A hit is a block of a beginning\n"
    "that is in the cache. The optimum knows the future; infinite is a cache that never ends.\n"
    "Policies: lru, fifo, s3fifo, lrfu, cost, auto.\n"
    "\n";

struct ReplayFlags {
  std::vector<std::string> files;
  std::vector<std::string> policies;
  std::vector<std::uint64_t> capacities = {1000, 3000, 10'000, 30'000};
  std::uint32_t block_tokens = 512;
  bool json = false;
  std::string svg;
};

/// The rates of one policy, by capacity.
struct ReplayRow {
  std::string policy;
  std::vector<TraceHits> hits = {};
};

struct ReplayReport {
  std::string file;
  std::vector<ReplayRow> rows = {};  // policies, then the optimum and infinite
  std::vector<TraceHits> lru = {};
  std::vector<TraceHits> optimum = {};

  double gap(const ReplayRow& row, std::size_t capacity) const {
    return gap_closed(lru[capacity].rate(), row.hits[capacity].rate(), optimum[capacity].rate());
  }
};

Result<std::vector<CachePolicyKind>> parse_policies(const std::vector<std::string>& names) {
  std::vector<CachePolicyKind> kinds(cache_policy_kinds.begin(), cache_policy_kinds.end());
  if (names.empty()) return kinds;
  kinds.clear();
  for (const std::string& name : names) {
    const std::optional<CachePolicyKind> kind = parse_cache_policy(name);
    if (!kind) {
      return Error{ErrorCode::invalid_argument,
                   "there is no policy '" + name + "'; lru, fifo, s3fifo, lrfu, cost or auto"};
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

/// False if the line is no request.
bool parse_request(std::string_view line, std::uint32_t block_tokens, TraceRequest& request) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("hash_ids") || !json["hash_ids"].is_array()) return false;
  for (const nlohmann::json& id : json["hash_ids"]) {
    if (!id.is_number_unsigned()) return false;
    const auto number = id.get<std::uint64_t>();
    if (number == std::numeric_limits<std::uint64_t>::max()) return false;
    request.blocks.push_back(number);
  }
  const auto length = json.find("input_length");
  if (length == json.end() || !length->is_number_unsigned()) return false;
  request.ends_in_tail = length->get<std::uint64_t>() % block_tokens != 0;
  return true;
}

Result<std::vector<TraceRequest>> read_trace(Env& env, const std::string& path,
                                             std::uint32_t block_tokens) {
  HEADRACE_TRY_ASSIGN(const std::string text, env.read_file(path));
  std::vector<TraceRequest> requests;
  std::size_t number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = std::string_view(text).substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TraceRequest request;
    if (!parse_request(line, block_tokens, request)) {
      return Error{ErrorCode::corrupt, path + ":" + std::to_string(number) +
                                           ": not a request with input_length and hash_ids"};
    }
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return Error{ErrorCode::corrupt, path + ": no requests"};
  return requests;
}

/// Replays everything. Errors: those of reading, cancelled.
Result<ReplayReport> replay_file(const std::string& file, const ReplayFlags& flags,
                                 const std::vector<CachePolicyKind>& kinds,
                                 CommandContext& context) {
  HEADRACE_TRY_ASSIGN(const std::vector<TraceRequest> requests,
                      read_trace(context.env, file, flags.block_tokens));
  ReplayReport report = {.file = file};
  for (const CachePolicyKind kind : kinds) report.rows.push_back({.policy = to_string(kind)});
  ReplayRow optimum = {.policy = "optimum"};
  ReplayRow infinite = {.policy = "infinite"};
  const TraceHits all = replay_infinite(requests);
  for (const std::uint64_t capacity : flags.capacities) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (context.interrupts.pending()) return Error{ErrorCode::cancelled, "stopped"};
      report.rows[i].hits.push_back(replay_trace(requests, kinds[i], capacity));
    }
    report.lru.push_back(replay_trace(requests, CachePolicyKind::lru, capacity));
    optimum.hits.push_back(replay_optimum(requests, capacity));
    infinite.hits.push_back(all);
  }
  report.optimum = optimum.hits;
  report.rows.push_back(std::move(optimum));
  report.rows.push_back(std::move(infinite));
  return report;
}

std::string format_share(double share, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, share);
  return text;
}

void print_report(std::ostream& out, const ReplayReport& report, const ReplayFlags& flags) {
  std::vector<std::string> head = {"hits"};
  for (const std::uint64_t capacity : flags.capacities) head.push_back(format_count(capacity));
  TextGrid rates(head);
  head.front() = "gap closed";
  TextGrid gaps(head);
  for (const ReplayRow& row : report.rows) {
    std::vector<std::string> rate_cells = {row.policy};
    std::vector<std::string> gap_cells = {row.policy};
    for (std::size_t i = 0; i < row.hits.size(); ++i) {
      rate_cells.push_back(format_share(row.hits[i].rate(), 4));
      gap_cells.push_back(format_share(100 * report.gap(row, i), 1) + " %");
    }
    rates.row(std::move(rate_cells));
    const bool is_between =
        row.policy != "lru" && row.policy != "optimum" && row.policy != "infinite";
    if (is_between) gaps.row(std::move(gap_cells));
  }
  out << report.file << ": " << format_count(report.lru.front().blocks)
      << " blocks asked for. Share of hits, by blocks of " << flags.block_tokens
      << " tokens in the cache:\n";
  rates.print(out);
  out << "Share of the way from lru to the optimum:\n";
  gaps.print(out);
}

nlohmann::ordered_json to_json(const ReplayReport& report, const ReplayFlags& flags) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const ReplayRow& row : report.rows) {
    for (std::size_t i = 0; i < row.hits.size(); ++i) {
      results.push_back({{"file", report.file},
                         {"policy", row.policy},
                         {"capacity_blocks", flags.capacities[i]},
                         {"blocks", row.hits[i].blocks},
                         {"hits", row.hits[i].hits},
                         {"hit_rate", row.hits[i].rate()},
                         {"gap_closed", report.gap(row, i)}});
    }
  }
  return results;
}

LineChart to_chart(const ReplayReport& report, const ReplayFlags& flags) {
  LineChart chart = {
      .title = "Blocks found in the cache",
      .x_label = "blocks of " + std::to_string(flags.block_tokens) + " tokens that the cache holds",
      .y_label = "% of the blocks asked for"};
  for (const ReplayRow& row : report.rows) {
    ChartSeries series = {.name = row.policy};
    for (std::size_t i = 0; i < row.hits.size(); ++i) {
      series.points.emplace_back(static_cast<double>(flags.capacities[i]),
                                 100 * row.hits[i].rate());
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

int replay(const ReplayFlags& given, CommandContext& context) {
  ReplayFlags flags = given;
  std::sort(flags.capacities.begin(), flags.capacities.end());
  const auto fail = [&](const Error& error, Phase phase) {
    if (error.code == ErrorCode::cancelled) return context.interrupts.exit_code();
    return report_error(context.err, error, phase);
  };
  const Result<std::vector<CachePolicyKind>> kinds = parse_policies(flags.policies);
  if (!kinds.ok()) return fail(kinds.error(), Phase::opening);
  if (!flags.svg.empty() && flags.files.size() > 1) {
    return fail({ErrorCode::invalid_argument, "--svg draws one trace"}, Phase::opening);
  }
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::string& file : flags.files) {
    const Result<ReplayReport> report = replay_file(file, flags, *kinds, context);
    if (!report.ok()) return fail(report.error(), Phase::opening);
    if (flags.json) {
      for (auto& result : to_json(*report, flags)) results.push_back(std::move(result));
    } else {
      print_report(context.out, *report, flags);
    }
    if (flags.svg.empty()) continue;
    const Result<void> written =
        write_file(context.env, flags.svg, to_svg(to_chart(*report, flags)));
    if (!written.ok()) return fail(written.error(), Phase::running);
  }
  if (flags.json) context.out << results.dump() << std::endl;
  return exit_ok;
}

}  // namespace

Command add_trace(CLI::App& program) {
  const auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = program.add_subcommand("trace", "Study which blocks of KV a cache would hit");
  command->require_subcommand(1);
  command->footer(footer);
  CLI::App* command_replay = command->add_subcommand(
      "replay", "Replay traces of requests against cache policies, without a model");
  command_replay->add_option("files", flags->files, "Traces, JSON lines in the form of Mooncake's")
      ->required()
      ->type_name("FILE");
  command_replay->add_option("--policy", flags->policies, "Such as lru,auto (default: all)")
      ->delimiter(',')
      ->type_name("LIST");
  command_replay
      ->add_option("--capacity", flags->capacities,
                   "Blocks that the cache holds (default: 1000,3000,10000,30000)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->type_name("LIST");
  command_replay
      ->add_option("--block-tokens", flags->block_tokens,
                   "Tokens of a block of the trace, which say whether a last one is full "
                   "(default: 512)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command_replay->add_flag("--json", flags->json, "A list with an object for each figure");
  command_replay->add_option("--svg", flags->svg, "The curves as a chart")->type_name("FILE");
  command_replay->footer(std::string(replay_footer) + footer);
  return {command, [flags](CommandContext& context) { return replay(*flags, context); }};
}

}  // namespace headrace
