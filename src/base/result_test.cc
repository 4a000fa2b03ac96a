#include "headrace/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace headrace {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Error{ErrorCode::invalid_argument, std::to_string(value) + " is odd"};
  return value / 2;
}

Result<int> quarter(int value) {
  HEADRACE_TRY_ASSIGN(const int first, half(value));
  HEADRACE_TRY_ASSIGN(const int second, half(first));
  return second;
}

Result<void> check_even(int value) {
  HEADRACE_TRY(half(value));
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(half(6).value(), 3);
  const Result<int> odd = half(7);
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(odd.error().message, "7 is odd");
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_TRUE(check_even(4));
  EXPECT_EQ(check_even(5).error().message, "5 is odd");
}

TEST(Result, MovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, EveryCodeHasANameOfItsOwn) {
  EXPECT_STREQ(to_string(ErrorCode::invalid_argument), "invalid_argument");
  EXPECT_STREQ(to_string(ErrorCode::out_of_budget), "out_of_budget");
  EXPECT_STREQ(to_string(ErrorCode::page_lost), "page_lost");
  EXPECT_STREQ(to_string(ErrorCode::internal), "internal");
}

}  // namespace
}  // namespace headrace
