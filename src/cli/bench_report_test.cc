#include "cli/bench_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace headrace {
namespace {

BenchResult result(const std::string& workload, const std::string& engine,
                   std::vector<double> samples) {
  BenchResult made = {.workload = {.name = workload}, .engine = engine, .samples = samples};
  made.workload.prompt_tokens = 512;
  if (workload.starts_with("decode")) {
    made.workload.kind = WorkloadKind::decode;
    made.workload.steps = 64;
  }
  (engine.starts_with("headrace") ? made.kv_bytes_peak : made.peak_rss_bytes) = 3U << 20U;
  return made;
}

BenchReport example() {
  BenchReport report;
  report.machine = {.cpu = "A <CPU>",
                    .cores = 2,
                    .memory_bytes = 1U << 30U,
                    .system = "Linux 6",
                    .instruction_set = "avx512"};
  report.limits = {.memory_read_bytes = 41.4e9, .int8_operations = 1.5e12};
  report.has_limits = true;
  report.model_file = "m.gguf";
  report.threads = 2;
  report.rounds = 3;
  report.results = {result("prefill-512", "headrace", {2500, 2400, 2600}),
                    result("prefill-512", "llama.cpp", {500, 490, 510}),
                    result("decode-16", "headrace", {280})};
  return report;
}

TEST(BenchReport, ShowsWorkloadsAsRowsAndEnginesAsColumns) {
  std::ostringstream out;
  print_report(out, example());
  EXPECT_NE(out.str().find("A <CPU>, 2 cores, 1 GiB, Linux 6, kernels for avx512\n"),
            std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("  tokens per second    headrace  llama.cpp  x llama.cpp\n"
                           "  prefill-512        2,500 ±4 %   500 ±2 %         5.00\n"),
            std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("memory, reading"), std::string::npos);
}

TEST(BenchReport, AFigureThatIsMissingIsADash) {
  std::ostringstream out;
  print_report(out, example());
  const std::string text = out.str();
  const std::string row = text.substr(text.find("decode-16"));
  EXPECT_EQ(std::count(row.begin(), row.begin() + static_cast<long>(row.find('\n')), '-'), 3)
      << row;
}

TEST(BenchReport, ResultsAreAListOfObjects) {
  const auto json = nlohmann::json::parse(results_json(example()));
  ASSERT_TRUE(json.is_array());
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[0]["workload"], "prefill-512");
  EXPECT_EQ(json[0]["engine"], "headrace");
  EXPECT_EQ(json[0]["tokens_per_second"], 2500);
  EXPECT_EQ(json[0]["min"], 2400);
  EXPECT_EQ(json[0]["max"], 2600);
  EXPECT_EQ(json[0]["samples"].size(), 3U);
  EXPECT_EQ(json[0]["kv_bytes_peak"], 3U << 20U);
  EXPECT_FALSE(json[0].contains("peak_rss_bytes"));
  EXPECT_EQ(json[1]["peak_rss_bytes"], 3U << 20U);
  EXPECT_EQ(json[2]["steps"], 64);
}

TEST(BenchReport, TheMachineIsAnObjectWithLimitsAndMemory) {
  const auto json = nlohmann::json::parse(machine_json(example()));
  EXPECT_EQ(json["machine"]["cpu"], "A <CPU>");
  EXPECT_EQ(json["machine"]["instruction_set"], "avx512");
  EXPECT_EQ(json["limits"]["memory_read_bytes_per_second"], 41.4e9);
  EXPECT_EQ(json["limits"]["bf16_operations_per_second"], 0);
  ASSERT_EQ(json["memory"].size(), 2U) << "of the prompts";
  EXPECT_EQ(json["memory"][0]["context_tokens"], 512);
  EXPECT_EQ(json["memory"][0]["kv_bytes_peak"], 3U << 20U);

  BenchReport without = example();
  without.has_limits = false;
  EXPECT_FALSE(nlohmann::json::parse(machine_json(without)).contains("limits"));
}

TEST(BenchReport, MarkdownHasTheRangesAndShowsTheCharts) {
  const std::string page = results_markdown(example(), true);
  EXPECT_NE(page.find("| prefill-512 | 2,500 (2,400 to 2,600) | 500 (490 to 510) | 5.00 |\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("| 512 tokens | 3 MiB |\n"), std::string::npos) << page;
  EXPECT_NE(page.find("| memory, reading | 41 GB/s |\n"), std::string::npos) << page;
  EXPECT_NE(page.find("| bf16 dot products | - |\n"), std::string::npos) << page;
  EXPECT_NE(page.find("](prefill.svg)"), std::string::npos);
  EXPECT_EQ(results_markdown(example(), false).find(".svg"), std::string::npos);
}

TEST(BenchReport, ChartsAreThoseThatHavePoints) {
  BenchReport report = example();
  const auto names = [&] {
    std::string all;
    for (const auto& [name, svg] : charts(report)) all += name + " ";
    return all;
  };
  EXPECT_EQ(names(), "prefill.svg decode.svg memory.svg ");
  report.results.pop_back();
  EXPECT_EQ(names(), "prefill.svg memory.svg ");
  report.results.clear();
  EXPECT_EQ(names(), "");
}

}  // namespace
}  // namespace headrace
