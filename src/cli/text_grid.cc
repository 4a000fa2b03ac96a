#include "cli/text_grid.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace headrace {
namespace {

/// Characters of UTF-8 text.
std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void TextGrid::row(std::vector<std::string> cells) {
  HEADRACE_CHECK(cells.size() == rows_.front().size(), "a row has the columns of the head");
  rows_.push_back(std::move(cells));
}

void TextGrid::print(std::ostream& out) const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& cells : rows_) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], characters(cells[i]));
    }
  }
  for (const auto& cells : rows_) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string blanks(widths[i] - characters(cells[i]), ' ');
      out << "  ";
      if (i == 0) {
        out << cells[i] << blanks;
      } else {
        out << blanks << cells[i];
      }
    }
    out << '\n';
  }
}

std::string TextGrid::to_markdown() const {
  std::string text;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    text += '|';
    for (const std::string& cell : rows_[i]) text += " " + cell + " |";
    text += '\n';
    if (i > 0) continue;
    text += "|---|";
    for (std::size_t column = 1; column < rows_[i].size(); ++column) text += "---:|";
    text += '\n';
  }
  return text;
}

}  // namespace headrace
