#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

class Log : public testing::Test {
 protected:
  ~Log() override { set_log_level(before_); }

  static std::string logged(LogLevel level, std::string_view message) {
    testing::internal::CaptureStderr();
    log_message(level, message);
    return testing::internal::GetCapturedStderr();
  }

 private:
  const LogLevel before_ = log_level();
};

TEST_F(Log, WritesOneLineWithTheLevel) {
  set_log_level(LogLevel::debug);
  EXPECT_EQ(logged(LogLevel::debug, "a"), "headrace: debug: a\n");
  EXPECT_EQ(logged(LogLevel::error, "disk gone"), "headrace: error: disk gone\n");
}

TEST_F(Log, KeepsQuietBelowTheLevelInForce) {
  set_log_level(LogLevel::warn);
  EXPECT_EQ(logged(LogLevel::info, "a"), "");
  EXPECT_EQ(logged(LogLevel::warn, "a"), "headrace: warn: a\n");
}

TEST_F(Log, OffSilencesEvenErrors) {
  set_log_level(LogLevel::off);
  EXPECT_EQ(logged(LogLevel::error, "a"), "");
  EXPECT_EQ(logged(LogLevel::off, "a"), "");
}

}  // namespace
}  // namespace headrace
