#include "cli/bench_figures.h"

#include <gtest/gtest.h>

#include <sstream>

namespace headrace {
namespace {

TEST(BenchFigures, SayHowMuchOfTheLimitWasReached) {
  std::ostringstream out;
  print_figures(out,
                {{.part = "decode", .name = "disk", .value = 40, .unit = "tok/s", .limit = 50}});
  EXPECT_NE(out.str().find("40.0 tok/s"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("80.0 %"), std::string::npos) << out.str();
}

TEST(BenchFigures, TheMedianIsTheOneInTheMiddle) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
}

}  // namespace
}  // namespace headrace
