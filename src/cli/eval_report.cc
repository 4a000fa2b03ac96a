#include "cli/eval_report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/figures.h"
#include "cli/line_chart.h"
#include "cli/text_grid.h"

namespace headrace {
namespace {

constexpr const char* nothing = "-";

std::string percent(std::optional<double> share) {
  if (!share) return nothing;
  return format_fixed(100 * *share, *share == 1 ? 0 : 1) + " %";
}

TextGrid grid_of(const EvalReport& report) {
  const EvalResult& full = report.results.front();
  std::vector<std::string> head = {"mode", "bits a value", "KV memory", "tokens read", "tok/s"};
  for (const EvalScore& score : full.scores) head.push_back(score.task);
  if (full.text) head.insert(head.end(), {"perplexity", "KL", "same top-1"});
  TextGrid grid(head);
  for (const EvalResult& result : report.results) {
    const bool is_full = &result == &full;
    const KvStats& kv = result.kv;
    std::vector<std::string> cells = {
        result.mode, format_fixed(result.bits_a_value, 1), format_byte_count(kv.kv_bytes_peak),
        kv.recall_choices > 0 ? format_fixed(kv.recall_tokens_read, 0) : "all",
        result.tokens_per_second > 0 ? format_fixed(result.tokens_per_second, 1) : nothing};
    for (const EvalScore& score : result.scores) {
      cells.push_back(is_full ? format_count(score.solved) + " of " + format_count(score.asked)
                              : percent(score.agreement()));
    }
    if (full.text) {
      cells.push_back(format_fixed(result.text->perplexity(), 3));
      cells.push_back(is_full ? nothing : format_scientific(result.text->kl_mean()));
      cells.push_back(is_full ? nothing : percent(result.text->same_top1()));
    }
    grid.row(std::move(cells));
  }
  return grid;
}

std::string head_line(const EvalReport& report) {
  std::string line = report.model_file + ", contexts of " + format_count(report.context_tokens) +
                     " tokens, " + format_count(report.threads) + " threads, seed " +
                     std::to_string(report.seed);
  if (report.text_tokens > 0) {
    line += ", " + format_count(report.text_tokens) + " predictions of the text";
  }
  return line;
}

constexpr const char* explanation =
    "Of the full cache: how many questions it answers rightly. Of the others: of these, the share\n"
    "that they answer rightly too.\n";

LineChart chart_of(const EvalReport& report, LineChart chart,
                   const std::function<std::optional<double>(const EvalResult&)>& y) {
  chart.x_label = "% of the full cache that is kept and read";
  for (const EvalResult& result : report.results) {
    const std::optional<double> value = y(result);
    if (!value) continue;
    auto series = std::ranges::find(chart.series, result.family, &ChartSeries::name);
    if (series == chart.series.end()) {
      series = chart.series.insert(series, {.name = result.family, .points = {}});
    }
    series->points.emplace_back(report.budget(result), *value);
  }
  for (ChartSeries& series : chart.series) std::ranges::sort(series.points);
  return chart;
}

}  // namespace

std::optional<double> EvalScore::agreement() const {
  if (solved == 0) return {};
  return static_cast<double>(agreed) / static_cast<double>(solved);
}

std::optional<double> EvalResult::agreement() const {
  EvalScore all;
  for (const EvalScore& score : scores) {
    all.solved += score.solved;
    all.agreed += score.agreed;
  }
  return all.agreement();
}

double EvalReport::budget(const EvalResult& result) const {
  double share = result.bits_a_value / results.front().bits_a_value;
  if (result.kv.recall_choices > 0) share *= result.kv.recall_tokens_read / context_tokens;
  return 100 * share;
}

void print_eval(std::ostream& out, const EvalReport& report) {
  out << head_line(report) << "\n\n";
  grid_of(report).print(out);
  out << "\n" << explanation;
}

std::string eval_json(const EvalReport& report) {
  using Json = nlohmann::ordered_json;
  Json json = {
      {"model", report.model_file}, {"context_tokens", report.context_tokens},
      {"threads", report.threads},  {"seed", report.seed},
      {"modes", Json::array()},
  };
  for (const EvalResult& result : report.results) {
    Json mode = {
        {"mode", result.mode},
        {"bits_a_value", result.bits_a_value},
        {"kv_bytes_peak", result.kv.kv_bytes_peak},
        {"tokens_read", nullptr},  // null: all
        {"mass_left_out", 0.0},
        {"budget_percent", report.budget(result)},
        {"tokens_per_second", result.tokens_per_second},
        {"tasks", Json::array()},
    };
    if (result.kv.recall_choices > 0) {
      mode["tokens_read"] = result.kv.recall_tokens_read;
      mode["mass_left_out"] = nullptr;  // null: nobody knows
      if (result.kv.recall_mass_left_out) mode["mass_left_out"] = *result.kv.recall_mass_left_out;
    }
    for (const EvalScore& score : result.scores) {
      Json task = {{"task", score.task},
                   {"asked", score.asked},
                   {"solved_by_exact", score.solved},
                   {"agreed", score.agreed},
                   {"agreement", nullptr}};  // null: exact solves nothing
      if (score.agreement()) task["agreement"] = *score.agreement();
      mode["tasks"].push_back(std::move(task));
    }
    if (result.text) {
      mode["perplexity"] = result.text->perplexity();
      mode["tokens_scored"] = result.text->tokens();
      if (result.text->compared()) {
        mode["kl_mean"] = result.text->kl_mean();
        mode["same_top1"] = result.text->same_top1();
      }
    }
    json["modes"].push_back(std::move(mode));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string eval_markdown(const EvalReport& report) {
  return "# Results of `headrace eval`\n\n" + head_line(report) + ".\n" + explanation + "\n" +
         grid_of(report).to_markdown();
}

std::vector<std::pair<std::string, std::string>> eval_charts(const EvalReport& report) {
  const LineChart quality =
      chart_of(report, {.title = "Agreement with the full cache", .x_label = {}, .y_label = "%"},
               [](const EvalResult& result) {
                 std::optional<double> share = result.agreement();
                 if (share) *share *= 100;
                 return share;
               });
  const LineChart speed = chart_of(
      report,
      {.title = "Reading and writing answers", .x_label = {}, .y_label = "tokens per second"},
      [](const EvalResult& result) {
        return result.tokens_per_second > 0 ? std::optional(result.tokens_per_second)
                                            : std::nullopt;
      });
  std::vector<std::pair<std::string, std::string>> files;
  if (!quality.series.empty()) files.emplace_back("eval-quality.svg", to_svg(quality));
  if (!speed.series.empty()) files.emplace_back("eval-speed.svg", to_svg(speed));
  return files;
}

}  // namespace headrace
