#include "cli/line_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string_view>

#include "cli/figures.h"

namespace headrace {
namespace {

constexpr double width = 760;
constexpr double height = 400;
constexpr double left = 70;
constexpr double right = 190;  // of which the legend takes most
constexpr double top = 40;
constexpr double bottom = 50;
constexpr int y_steps_most = 5;

// Told apart also by people who see fewer colours (Okabe and Ito).
constexpr const char* colours[] = {"#0072b2", "#e69f00", "#009e73", "#d55e00",
                                   "#cc79a7", "#56b4e9", "#000000", "#999933"};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else {
      safe += c;
    }
  }
  return safe;
}

/// 1, 2 or 5 times a power of ten, so that few of them reach `largest`.
double step_for(double largest) {
  if (largest <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(largest / y_steps_most)));
  for (const double step : {power, 2 * power, 5 * power}) {
    if (step * y_steps_most >= largest) return step;
  }
  return 10 * power;
}

std::string axis_text(double value) {
  if (value < 10 && value != std::floor(value)) return number(value);
  return format_count(static_cast<std::uint64_t>(std::llround(value)));
}

class Drawing {
 public:
  explicit Drawing(const LineChart& chart) : chart_(chart) {
    double largest = 0;
    for (const ChartSeries& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        xs_.insert(x);
        largest = std::max(largest, y);
      }
    }
    y_step_ = step_for(largest);
    y_steps_ = std::max(1, static_cast<int>(std::ceil(largest / y_step_)));
  }

  std::string draw() {
    svg_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(width) + " " +
           number(height) + "\" font-family=\"sans-serif\" font-size=\"12\">\n";
    svg_ += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    text(left, 22, "start", chart_.title, " font-size=\"15\" font-weight=\"bold\"");
    draw_axes();
    for (std::size_t i = 0; i < chart_.series.size(); ++i) draw_series(i);
    return svg_ + "</svg>\n";
  }

 private:
  double place_x(double x) const {
    const double first = std::log2(*xs_.begin());
    const double span = std::log2(*xs_.rbegin()) - first;
    const double part = span > 0 ? (std::log2(x) - first) / span : 0.5;
    return left + part * (width - left - right);
  }
  double place_y(double y) const {
    return height - bottom - y / (y_step_ * y_steps_) * (height - top - bottom);
  }

  void text(double x, double y, std::string_view anchor, std::string_view words,
            std::string_view more = "") {
    svg_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" +
            std::string(anchor) + "\"" + std::string(more) + ">" + escaped(words) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, std::string_view colour) {
    svg_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
            "\" y2=\"" + number(y2) + "\" stroke=\"" + std::string(colour) + "\"/>\n";
  }

  void draw_axes() {
    for (int i = 0; i <= y_steps_; ++i) {
      const double y = place_y(i * y_step_);
      line(left, y, width - right, y, i == 0 ? "#444444" : "#dddddd");
      text(left - 8, y + 4, "end", axis_text(i * y_step_));
    }
    for (const double x : xs_) {
      line(place_x(x), height - bottom, place_x(x), height - bottom + 5, "#444444");
      text(place_x(x), height - bottom + 20, "middle", axis_text(x));
    }
    text((left + width - right) / 2, height - 10, "middle", chart_.x_label);
    text(16, (top + height - bottom) / 2, "middle", chart_.y_label,
         " transform=\"rotate(-90 16 " + number((top + height - bottom) / 2) + ")\"");
  }

  void draw_series(std::size_t index) {
    const ChartSeries& series = chart_.series[index];
    const std::string colour = colours[index % std::size(colours)];
    std::string places;
    for (const auto& [x, y] : series.points) {
      places += (places.empty() ? "" : " ") + number(place_x(x)) + "," + number(place_y(y));
    }
    svg_ += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + colour + "\" points=\"" +
            places + "\"/>\n";
    for (const auto& [x, y] : series.points) {
      svg_ += "<circle r=\"3.5\" cx=\"" + number(place_x(x)) + "\" cy=\"" + number(place_y(y)) +
              "\" fill=\"" + colour + "\"/>\n";
    }
    const double legend_y = top + 10 + 20 * static_cast<double>(index);
    svg_ += "<rect x=\"" + number(width - right + 20) + "\" y=\"" + number(legend_y - 5) +
            "\" width=\"18\" height=\"4\" fill=\"" + colour + "\"/>\n";
    text(width - right + 46, legend_y + 1, "start", series.name);
  }

  const LineChart& chart_;
  std::set<double> xs_;
  double y_step_ = 1;
  int y_steps_ = 1;
  std::string svg_;
};

}  // namespace

std::string to_svg(const LineChart& chart) { return Drawing(chart).draw(); }

}  // namespace headrace
