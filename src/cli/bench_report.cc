#include "cli/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/figures.h"
#include "cli/line_chart.h"
#include "cli/text_grid.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* own_name = "headrace";
constexpr const char* peer_names[] = {"llama.cpp", "openvino-genai"};
constexpr const char* nothing = "-";

std::string decimal(double value, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string speed_text(double tokens_per_second) {
  return tokens_per_second < 99.95
             ? decimal(tokens_per_second, 1)
             : format_count(static_cast<std::uint64_t>(std::llround(tokens_per_second)));
}

/// "2,550 ±1 %"
std::string short_speed(const BenchResult& result) {
  const double median = result.median();
  if (median <= 0) return nothing;
  const double spread = (result.most() - result.least()) / 2 / median;
  return speed_text(median) + " ±" + decimal(100 * spread, 0) + " %";
}

/// "2,550 (2,524 to 2,561)"
std::string long_speed(const BenchResult& result) {
  return speed_text(result.median()) + " (" + speed_text(result.least()) + " to " +
         speed_text(result.most()) + ")";
}

std::string ratio_text(const BenchResult* own, const BenchResult* peer) {
  if (own == nullptr || peer == nullptr || peer->median() <= 0) return nothing;
  return decimal(own->median() / peer->median(), 2);
}

/// In the order of their first result.
std::vector<std::string> names_of(const BenchReport& report,
                                  const std::function<const std::string&(const BenchResult&)>& name,
                                  const std::function<bool(const BenchResult&)>& wanted) {
  std::vector<std::string> names;
  for (const BenchResult& result : report.results) {
    if (wanted(result) && std::find(names.begin(), names.end(), name(result)) == names.end()) {
      names.push_back(name(result));
    }
  }
  return names;
}

std::vector<std::string> engines_where(const BenchReport& report,
                                       const std::function<bool(const BenchResult&)>& wanted) {
  return names_of(
      report, [](const BenchResult& r) -> const std::string& { return r.engine; }, wanted);
}

std::vector<std::string> workloads_where(const BenchReport& report,
                                         const std::function<bool(const BenchResult&)>& wanted) {
  return names_of(
      report, [](const BenchResult& r) -> const std::string& { return r.workload.name; }, wanted);
}

bool any(const BenchResult&) { return true; }
bool is_prefill(const BenchResult& result) { return result.workload.kind == WorkloadKind::prefill; }

/// Workloads as rows, engines as columns.
TextGrid speed_grid(const BenchReport& report,
                    const std::function<std::string(const BenchResult&)>& cell) {
  const std::vector<std::string> engines = engines_where(report, any);
  std::vector<std::string> head = {"tokens per second"};
  head.insert(head.end(), engines.begin(), engines.end());
  std::vector<std::string> peers;
  for (const char* peer : peer_names) {
    if (std::find(engines.begin(), engines.end(), peer) == engines.end()) continue;
    peers.emplace_back(peer);
    head.push_back("x " + peers.back());
  }
  TextGrid grid(head);
  for (const std::string& workload : workloads_where(report, any)) {
    std::vector<std::string> cells = {workload};
    for (const std::string& engine : engines) {
      const BenchResult* result = find_result(report.results, workload, engine);
      cells.push_back(result != nullptr ? cell(*result) : nothing);
    }
    const BenchResult* own = find_result(report.results, workload, own_name);
    for (const std::string& peer : peers) {
      cells.push_back(ratio_text(own, find_result(report.results, workload, peer)));
    }
    grid.row(std::move(cells));
  }
  return grid;
}

using BytesOf = std::uint64_t BenchResult::*;

/// Tokens read as rows, engines that know their memory as columns.
TextGrid memory_grid(const BenchReport& report, const std::string& what, BytesOf bytes) {
  const auto wanted = [&](const BenchResult& r) { return is_prefill(r) && r.*bytes > 0; };
  const std::vector<std::string> engines = engines_where(report, wanted);
  std::vector<std::string> head = {what};
  head.insert(head.end(), engines.begin(), engines.end());
  TextGrid grid(head);
  for (const std::string& workload : workloads_where(report, wanted)) {
    std::vector<std::string> cells = {""};
    for (const std::string& engine : engines) {
      const BenchResult* result = find_result(report.results, workload, engine);
      cells.push_back(result != nullptr ? format_byte_count(result->*bytes) : nothing);
      if (result != nullptr) cells[0] = format_count(result->workload.prompt_tokens) + " tokens";
    }
    grid.row(std::move(cells));
  }
  return grid;
}

std::string giga(double per_second, const std::string& unit) {
  return per_second > 0
             ? (per_second < 1e10
                    ? decimal(per_second / 1e9, 2)
                    : format_count(static_cast<std::uint64_t>(std::llround(per_second / 1e9)))) +
                   " " + unit
             : nothing;
}

TextGrid limits_grid(const MachineLimits& limits) {
  TextGrid grid({"limit of the machine", "measured"});
  grid.row({"memory, reading", giga(limits.memory_read_bytes, "GB/s")});
  grid.row({"8-bit dot products", giga(limits.int8_operations, "Gop/s")});
  grid.row({"bf16 dot products", giga(limits.bf16_operations, "Gop/s")});
  grid.row({"disk, writing", giga(limits.disk_write_bytes, "GB/s")});
  grid.row({"disk, reading", giga(limits.disk_read_bytes, "GB/s")});
  return grid;
}

std::string machine_line(const BenchReport& report) {
  const Machine& machine = report.machine;
  return machine.cpu + ", " + format_count(machine.cores) + " cores, " +
         format_byte_count(machine.memory_bytes) + ", " + machine.system + ", kernels for " +
         machine.instruction_set;
}

std::string model_line(const BenchReport& report) {
  return report.model_file + " (" + format_byte_count(report.model.file_bytes) + "), " +
         format_count(report.threads) + " threads, " +
         (report.rounds == 1 ? "one round"
                             : "median of " + format_count(report.rounds) + " rounds") +
         " in turns";
}

std::string dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json to_json(const BenchResult& result) {
  Json json = {
      {"workload", result.workload.name},
      {"engine", result.engine},
      {"tokens_per_second", result.median()},
      {"min", result.least()},
      {"max", result.most()},
      {"samples", result.samples},
      {"prompt_tokens", result.workload.prompt_tokens},
      {"steps", result.workload.steps},
      {"sequences", result.workload.sequences},
  };
  if (result.kv_bytes_peak > 0) json["kv_bytes_peak"] = result.kv_bytes_peak;
  if (result.peak_rss_bytes > 0) json["peak_rss_bytes"] = result.peak_rss_bytes;
  return json;
}

LineChart chart_of(const BenchReport& report, const LineChart& frame,
                   const std::function<bool(const BenchResult&)>& wanted,
                   const std::function<double(const BenchResult&)>& y) {
  LineChart chart = frame;
  for (const std::string& engine : engines_where(report, wanted)) {
    ChartSeries series = {.name = engine, .points = {}};
    for (const BenchResult& result : report.results) {
      if (result.engine != engine || !wanted(result)) continue;
      series.points.emplace_back(result.workload.prompt_tokens, y(result));
    }
    std::sort(series.points.begin(), series.points.end());
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

void print_report(std::ostream& out, const BenchReport& report) {
  out << machine_line(report) << "\n";
  if (report.has_limits) {
    out << "\n";
    limits_grid(report.limits).print(out);
  }
  if (report.results.empty()) return;
  out << "\n" << model_line(report) << "\n\n";
  speed_grid(report, short_speed).print(out);
  if (!workloads_where(report, is_prefill).empty()) {
    out << "\n";
    memory_grid(report, "KV memory", &BenchResult::kv_bytes_peak).print(out);
  }
}

std::string results_json(const BenchReport& report) {
  Json json = Json::array();
  for (const BenchResult& result : report.results) json.push_back(to_json(result));
  return dump(json);
}

std::string machine_json(const BenchReport& report) {
  Json memory = Json::array();
  for (const BenchResult& result : report.results) {
    if (!is_prefill(result)) continue;
    Json entry = {{"context_tokens", result.workload.prompt_tokens}, {"engine", result.engine}};
    if (result.kv_bytes_peak > 0) entry["kv_bytes_peak"] = result.kv_bytes_peak;
    if (result.peak_rss_bytes > 0) entry["peak_rss_bytes"] = result.peak_rss_bytes;
    memory.push_back(std::move(entry));
  }
  const Machine& machine = report.machine;
  Json json = {
      {"machine",
       {{"cpu", machine.cpu},
        {"cores", machine.cores},
        {"memory_bytes", machine.memory_bytes},
        {"system", machine.system},
        {"instruction_set", machine.instruction_set}}},
      {"threads", report.threads},
      {"rounds", report.rounds},
      {"model",
       {{"file", report.model_file},
        {"name", report.model.name},
        {"file_bytes", report.model.file_bytes},
        {"trained_context", report.model.trained_context}}},
      {"memory", memory},
  };
  if (report.has_limits) {
    json["limits"] = {{"memory_read_bytes_per_second", report.limits.memory_read_bytes},
                      {"int8_operations_per_second", report.limits.int8_operations},
                      {"bf16_operations_per_second", report.limits.bf16_operations},
                      {"disk_write_bytes_per_second", report.limits.disk_write_bytes},
                      {"disk_read_bytes_per_second", report.limits.disk_read_bytes}};
  }
  return dump(json);
}

std::string results_markdown(const BenchReport& report, bool has_charts) {
  std::string text = "# Results of `headrace bench`\n\n" + machine_line(report) + ".\n";
  if (!report.results.empty()) {
    text +=
        model_line(report) + "; with the range.\n\n" + speed_grid(report, long_speed).to_markdown();
  }
  if (!workloads_where(report, is_prefill).empty()) {
    text += "\n" + memory_grid(report, "KV memory", &BenchResult::kv_bytes_peak).to_markdown();
  }
  const auto has_process = [](const BenchResult& r) {
    return is_prefill(r) && r.peak_rss_bytes > 0;
  };
  if (!workloads_where(report, has_process).empty()) {
    text += "\n" + memory_grid(report, "whole process", &BenchResult::peak_rss_bytes).to_markdown();
  }
  if (report.has_limits) text += "\n" + limits_grid(report.limits).to_markdown();
  if (has_charts) {
    for (const auto& [file, svg] : charts(report))
      text.append("\n![").append(file).append("](").append(file).append(")\n");
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> charts(const BenchReport& report) {
  constexpr double mebibyte = 1U << 20U;
  const auto is_decode = [](const BenchResult& r) {
    return r.workload.kind == WorkloadKind::decode;
  };
  const auto has_kv = [](const BenchResult& r) { return is_prefill(r) && r.kv_bytes_peak > 0; };
  const auto median = [](const BenchResult& r) { return r.median(); };
  const std::vector<std::pair<std::string, LineChart>> all = {
      {"prefill.svg", chart_of(report,
                               {.title = "Reading a prompt",
                                .x_label = "tokens of the prompt",
                                .y_label = "tokens per second"},
                               is_prefill, median)},
      {"decode.svg", chart_of(report,
                              {.title = "Writing an answer",
                               .x_label = "tokens before it",
                               .y_label = "tokens per second"},
                              is_decode, median)},
      {"memory.svg", chart_of(report,
                              {.title = "Memory of keys and values",
                               .x_label = "tokens of the prompt",
                               .y_label = "MiB"},
                              has_kv,
                              [](const BenchResult& r) {
                                return static_cast<double>(r.kv_bytes_peak) / mebibyte;
                              })},
  };
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [file, chart] : all) {
    if (!chart.series.empty()) files.emplace_back(file, to_svg(chart));
  }
  return files;
}

}  // namespace headrace
