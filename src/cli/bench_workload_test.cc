#include "cli/bench_workload.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

Workload workload(const std::string& name) {
  for (const Workload& known : all_workloads()) {
    if (known.name == name) return known;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(BenchWorkload, FitsTheContextThatTheModelWasTrainedFor) {
  EXPECT_EQ(fit_workload(workload("prefill-8192"), 8192)->prompt_tokens, 8192U);
  EXPECT_EQ(fit_workload(workload("decode-8192"), 8192)->prompt_tokens, 8128U);
  EXPECT_EQ(fit_workload(workload("decode-8192"), 8192)->context_tokens(), 8192U);
  EXPECT_EQ(fit_workload(workload("decode-8192"), 32768)->prompt_tokens, 8192U);
  EXPECT_EQ(fit_workload(workload("decode-16"), 80)->prompt_tokens, 16U);
}

TEST(BenchWorkload, IsLeftOutWhereTheModelIsTooShort) {
  for (const char* name : {"prefill-16384", "decode-16384"}) {
    const auto fitted = fit_workload(workload(name), 8192);
    ASSERT_FALSE(fitted.ok()) << name;
    EXPECT_EQ(fitted.error().message, "the model was trained for 8192 tokens");
  }
  EXPECT_FALSE(fit_workload(workload("decode-16"), 64).ok());
}

TEST(BenchWorkload, NamesAreChosenOnceAndInTheirOrder) {
  EXPECT_EQ(choose_names("engine", {"b", "a", "b"}, {"a", "b", "c"}).value(),
            (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(choose_names("engine", {"a", "d"}, {"a", "b", "c"}).error().message,
            "there is no engine 'd'; there are a, b, c");
}

}  // namespace
}  // namespace headrace
