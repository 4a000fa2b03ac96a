#include "cli/bench_result.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace headrace {
namespace {

/// Gives scripted figures and writes down its turns.
class ScriptedEngine final : public BenchEngine {
 public:
  ScriptedEngine(std::string name, std::vector<std::string>& turns, std::deque<double> figures)
      : BenchEngine(std::move(name)), turns_(turns), figures_(std::move(figures)) {}

  Result<BenchSample> measure(const Workload& workload) override {
    turns_.push_back(name() + " " + workload.name);
    if (figures_.empty()) return failure;
    const double figure = figures_.front();
    figures_.pop_front();
    return BenchSample{.tokens_per_second = figure,
                       .kv_bytes_peak = static_cast<std::uint64_t>(figure)};
  }

  Error failure = {ErrorCode::io, "no more"};

 private:
  std::vector<std::string>& turns_;
  std::deque<double> figures_;
};

class BenchRun : public testing::Test {
 protected:
  ScriptedEngine& add(const std::string& name, std::deque<double> figures) {
    plan.engines.push_back(std::make_unique<ScriptedEngine>(name, turns, std::move(figures)));
    return static_cast<ScriptedEngine&>(*plan.engines.back());
  }

  std::vector<std::string> turns, said;
  BenchPlan plan = {.workloads = {{.name = "w"}},
                    .engines = {},
                    .rounds = 3,
                    .say = [this](const std::string& line) { said.push_back(line); }};
};

TEST(BenchResult, HasAMedianAndARange) {
  BenchResult result = {.workload = {}, .engine = "e", .samples = {5, 1, 3}};
  EXPECT_EQ(result.median(), 3);
  EXPECT_EQ(result.least(), 1);
  EXPECT_EQ(result.most(), 5);
  result.samples = {5, 1};
  EXPECT_EQ(result.median(), 3);
  result.samples = {7};
  EXPECT_EQ(result.median(), 7);
}

TEST_F(BenchRun, EnginesTakeTurns) {
  add("a", {1, 5, 3});
  add("b", {10, 30, 20});
  const auto results = run_plan(plan).value();
  EXPECT_EQ(turns, (std::vector<std::string>{"a w", "b w", "a w", "b w", "a w", "b w"}));
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].samples, (std::vector<double>{1, 5, 3}));
  EXPECT_EQ(results[0].kv_bytes_peak, 5U) << "the most of all rounds";
  EXPECT_EQ(find_result(results, "w", "b")->median(), 20);
  EXPECT_EQ(find_result(results, "w", "c"), nullptr);
  EXPECT_EQ(said.front(), "w, round 1 of 3: a 1.00 tok/s, b 10.0 tok/s");
}

TEST_F(BenchRun, SaysWhatItBegins) {
  std::vector<std::string> begun;
  plan.begin = [&](const std::string& what) { begun.push_back(what); };
  plan.rounds = 1;
  add("a", {1});
  add("b", {});
  ASSERT_TRUE(run_plan(plan).ok());
  EXPECT_EQ(begun, (std::vector<std::string>{"w, round 1 of 1: a", "w, round 1 of 1: b"}));
}

TEST_F(BenchRun, AnEngineThatFailsIsLeftOutWithALineAndTheOthersGoOn) {
  add("a", {1});
  add("b", {10, 20, 30});
  const auto results = run_plan(plan).value();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].engine, "b");
  EXPECT_EQ(turns.size(), 5U) << "it is not asked again";
  EXPECT_EQ(said[1], "a is left out of w: no more");
}

TEST_F(BenchRun, AnInterruptEndsIt) {
  add("a", {}).failure = {ErrorCode::cancelled, "stopped"};
  add("b", {10, 20, 30});
  EXPECT_EQ(run_plan(plan).error().code, ErrorCode::cancelled);
  EXPECT_EQ(turns.size(), 1U);
}

}  // namespace
}  // namespace headrace
