#include "cli/bench_figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/text_grid.h"

namespace headrace {
namespace {

std::string format_value(double value) {
  char text[32];
  const char* const format = value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : "%.3g";
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

TextGrid grid_of(const std::vector<BenchFigure>& figures) {
  TextGrid grid({"what", "figure", "limit", "of it"});
  for (const BenchFigure& figure : figures) {
    const bool has_limit = figure.limit > 0;
    grid.row({figure.part + ": " + figure.name,
              format_value(figure.value) + (figure.unit.empty() ? "" : " " + figure.unit),
              has_limit ? format_value(figure.limit) + " " + figure.unit : "",
              has_limit ? format_value(std::round(figure.value / figure.limit * 100)) + " %" : ""});
  }
  return grid;
}

}  // namespace

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

void print_figures(std::ostream& out, const std::vector<BenchFigure>& figures) {
  grid_of(figures).print(out);
}

std::string figures_markdown(const std::vector<BenchFigure>& figures) {
  return grid_of(figures).to_markdown();
}

std::string figures_json(const std::vector<BenchFigure>& figures) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const BenchFigure& figure : figures) {
    nlohmann::ordered_json object = {{"part", figure.part},
                                     {"name", figure.name},
                                     {"value", figure.value},
                                     {"unit", figure.unit}};
    if (figure.limit > 0) object["limit"] = figure.limit;
    json.push_back(std::move(object));
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace headrace
