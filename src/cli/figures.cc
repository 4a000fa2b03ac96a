#include "cli/figures.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace headrace {

std::string format_scientific(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

std::string format_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string format_fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 9.995) return format_fixed(seconds, 2) + " s";
  if (seconds < 99.95) return format_fixed(seconds, 1) + " s";
  const auto whole = static_cast<std::uint64_t>(std::llround(std::min(seconds, 1e15)));
  char text[64];
  if (whole < 3600) {
    std::snprintf(text, sizeof text, "%u min %02u s", static_cast<unsigned>(whole / 60),
                  static_cast<unsigned>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%llu h %02u min",
                  static_cast<unsigned long long>(whole / 3600),
                  static_cast<unsigned>(whole % 3600 / 60));
  }
  return text;
}

std::string format_rate(double tokens_per_second) {
  if (!std::isfinite(tokens_per_second) || tokens_per_second <= 0) return "-";
  if (tokens_per_second < 9.995) return format_fixed(tokens_per_second, 2) + " tok/s";
  if (tokens_per_second < 99.95) return format_fixed(tokens_per_second, 1) + " tok/s";
  return format_count(static_cast<std::uint64_t>(std::llround(tokens_per_second))) + " tok/s";
}

Table& Table::row(std::string label, std::string figure) {
  rows_.emplace_back(std::move(label), std::move(figure));
  return *this;
}

void Table::print(std::ostream& out) const {
  std::size_t width = 0;
  for (const auto& [label, figure] : rows_) width = std::max(width, label.size());
  for (const auto& [label, figure] : rows_) {
    out << "  " << label << std::string(width - label.size() + 3, ' ') << figure << '\n';
  }
}

}  // namespace headrace
