#include <gtest/gtest.h>

#include "cli/command_test.h"
#include "cli/exit_code.h"

namespace headrace {
namespace {

class Verify : public CommandTest {
 protected:
  Verify() { EXPECT_TRUE(env.make_directories("/kv").ok()); }
};

TEST_F(Verify, AnEmptyDirectoryIsWhole) {
  write_file("/kv/photo.jpg", "x");
  EXPECT_EQ(run({"verify", "/kv", "--json"}), exit_ok);
  EXPECT_EQ(json()["segments"], 0);
  EXPECT_EQ(json()["pages"], 0);
  EXPECT_EQ(json()["damaged"].size(), 0U);
  EXPECT_EQ(json()["foreign_files"][0], "photo.jpg");
}

TEST_F(Verify, DamageIsNamedAndIsAFailure) {
  write_file("/kv/seg-00000001.hrs", std::string(10'000, 'x'));
  EXPECT_EQ(run({"verify", "/kv"}), exit_failure);
  EXPECT_NE(out.str().find("seg-00000001.hrs at byte 0: not a segment"), std::string::npos)
      << out.str();
}

TEST_F(Verify, ADirectoryInUseOrMissingIsAnError) {
  const auto lock = env.lock_file("/kv/headrace.lock");
  EXPECT_EQ(run({"verify", "/kv"}), exit_failure);
  EXPECT_NE(err.str().find("held by someone else"), std::string::npos) << err.str();
  EXPECT_EQ(run({"verify", "/nowhere"}), exit_usage);
}

}  // namespace
}  // namespace headrace
