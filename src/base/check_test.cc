#include "base/check.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Check, LetsATrueConditionPass) { HEADRACE_CHECK(1 + 1 == 2, "arithmetic works"); }

TEST(CheckDeathTest, NamesThePlaceThePromiseAndTheCondition) {
  EXPECT_DEATH(HEADRACE_CHECK(1 + 1 == 3, "a page has one owner"),
               "check_test.cc:[0-9]+: bug: a page has one owner \\(1 \\+ 1 == 3 does not hold\\)");
}

}  // namespace
}  // namespace headrace
