#include "cli/bench_result.h"

#include <algorithm>

#include "base/check.h"
#include "cli/figures.h"

namespace headrace {

double BenchResult::median() const {
  HEADRACE_CHECK(!samples.empty(), "a result has samples");
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double BenchResult::least() const { return *std::min_element(samples.begin(), samples.end()); }
double BenchResult::most() const { return *std::max_element(samples.begin(), samples.end()); }

namespace {

/// An engine on its way through one workload.
struct Runner {
  BenchEngine* engine;
  BenchResult result;
  bool failed = false;
};

/// Errors: cancelled.
Result<void> run_round(const BenchPlan& plan, std::vector<Runner>& runners, std::uint32_t round) {
  const std::string& workload = runners.front().result.workload.name;
  const std::string turn =
      workload + ", round " + std::to_string(round) + " of " + std::to_string(plan.rounds) + ": ";
  std::string rates;
  for (Runner& runner : runners) {
    if (runner.failed) continue;
    if (plan.begin) plan.begin(turn + runner.engine->name());
    const Result<BenchSample> sample = runner.engine->measure(runner.result.workload);
    if (!sample.ok()) {
      if (sample.error().code == ErrorCode::cancelled) return sample.error();
      runner.failed = true;
      plan.say(runner.engine->name() + " is left out of " + workload + ": " +
               sample.error().message);
      continue;
    }
    runner.result.samples.push_back(sample->tokens_per_second);
    runner.result.kv_bytes_peak = std::max(runner.result.kv_bytes_peak, sample->kv_bytes_peak);
    runner.result.peak_rss_bytes = std::max(runner.result.peak_rss_bytes, sample->peak_rss_bytes);
    rates += (rates.empty() ? "" : ", ") + runner.engine->name() + " " +
             format_rate(sample->tokens_per_second);
  }
  if (!rates.empty()) plan.say(turn + rates);
  return {};
}

}  // namespace

Result<std::vector<BenchResult>> run_plan(const BenchPlan& plan) {
  std::vector<BenchResult> results;
  for (const Workload& workload : plan.workloads) {
    std::vector<Runner> runners;
    runners.reserve(plan.engines.size());
    for (const auto& engine : plan.engines) {
      runners.push_back({engine.get(), {.workload = workload, .engine = engine->name()}});
    }
    for (std::uint32_t round = 1; round <= plan.rounds; ++round) {
      HEADRACE_TRY(run_round(plan, runners, round));
    }
    for (Runner& runner : runners) {
      if (!runner.failed) results.push_back(std::move(runner.result));
    }
  }
  return results;
}

const BenchResult* find_result(std::span<const BenchResult> results, const std::string& workload,
                               const std::string& engine) {
  for (const BenchResult& result : results) {
    if (result.workload.name == workload && result.engine == engine) return &result;
  }
  return nullptr;
}

}  // namespace headrace
