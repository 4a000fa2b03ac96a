// Figures: numbers as people read them, and small tables of them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

/// "3.0e-03": two digits
std::string format_scientific(double value);
/// "7,012"
std::string format_count(std::uint64_t count);
/// With so many digits behind the point.
std::string format_fixed(double value, int decimals);
/// "0.42 s", "17.0 s", "3 min 20 s", "2 h 05 min"
std::string format_seconds(double seconds);
/// "9.31 tok/s", "40.2 tok/s", "1,203 tok/s"; "-" where nothing was measured
std::string format_rate(double tokens_per_second);

/// Labels on the left, figures on the right, aligned.
class Table {
 public:
  Table& row(std::string label, std::string figure);
  void print(std::ostream& out) const;

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

}  // namespace headrace
