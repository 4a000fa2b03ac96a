// LineChart: a picture of a few series over the context length, as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points = {};  ///< (x > 0, y >= 0), by x
};

/// x is drawn on a scale of powers of two, y from 0 on.
struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartSeries> series = {};
};

/// A whole SVG document.
std::string to_svg(const LineChart& chart);

}  // namespace headrace
