#include "cli/text_grid.h"

#include <gtest/gtest.h>

#include <sstream>

namespace headrace {
namespace {

TextGrid example() {
  TextGrid grid({"what", "first", "b"});
  grid.row({"long name", "1 ±2 %", "3"});
  return grid;
}

TEST(TextGrid, AlignsCharactersNotBytes) {
  std::ostringstream out;
  example().print(out);
  EXPECT_EQ(out.str(),
            "  what        first  b\n"
            "  long name  1 ±2 %  3\n");
}

TEST(TextGrid, IsMarkdownWithFiguresOnTheRight) {
  EXPECT_EQ(example().to_markdown(),
            "| what | first | b |\n"
            "|---|---:|---:|\n"
            "| long name | 1 ±2 % | 3 |\n");
}

TEST(TextGrid, WantsACellForEachColumn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TextGrid grid({"a", "b"});
  EXPECT_DEATH(grid.row({"1"}), "columns of the head");
}

}  // namespace
}  // namespace headrace
