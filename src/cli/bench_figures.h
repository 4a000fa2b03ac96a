// What `headrace bench --store`, `--recall` and `--recompute` measured: single figures, some with a
// limit.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace headrace {

struct BenchFigure {
  std::string part;  ///< such as "limits", "decode" or "restart"
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0;  ///< what the value could be at best; 0: not known
};

/// 0 when there are none.
double median(std::vector<double> values);

void print_figures(std::ostream& out, const std::vector<BenchFigure>& figures);
std::string figures_markdown(const std::vector<BenchFigure>& figures);
/// A list of objects, one a figure.
std::string figures_json(const std::vector<BenchFigure>& figures);

}  // namespace headrace
