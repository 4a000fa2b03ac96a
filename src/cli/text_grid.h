// TextGrid: a table with a head, for a terminal or as Markdown.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace headrace {

/// The first column is aligned to the left, the others to the right.
class TextGrid {
 public:
  explicit TextGrid(std::vector<std::string> head) : rows_{std::move(head)} {}

  /// As many cells as the head has.
  void row(std::vector<std::string> cells);

  void print(std::ostream& out) const;
  std::string to_markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the head first
};

}  // namespace headrace
