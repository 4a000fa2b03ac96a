#include "cli/figures.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace headrace {
namespace {

TEST(Figures, CountsAreGroupedByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(7012), "7,012");
  EXPECT_EQ(format_count(1234567), "1,234,567");
}

TEST(Figures, DurationsHaveTheUnitThatFits) {
  EXPECT_EQ(format_seconds(0.4201), "0.42 s");
  EXPECT_EQ(format_seconds(17.04), "17.0 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(7500), "2 h 05 min");
  EXPECT_EQ(format_seconds(std::numeric_limits<double>::infinity()), "-");
}

TEST(Figures, RatesHaveThreeDigits) {
  EXPECT_EQ(format_rate(9.309), "9.31 tok/s");
  EXPECT_EQ(format_rate(40.23), "40.2 tok/s");
  EXPECT_EQ(format_rate(1203.4), "1,203 tok/s");
  EXPECT_EQ(format_rate(0), "-");
}

TEST(Figures, TablesAlignTheirFigures) {
  std::ostringstream out;
  Table().row("a", "1").row("long", "2").print(out);
  EXPECT_EQ(out.str(), "  a      1\n  long   2\n");
}

}  // namespace
}  // namespace headrace
