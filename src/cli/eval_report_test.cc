#include "cli/eval_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace headrace {
namespace {

EvalReport example() {
  EvalReport report = {
      .model_file = "m.gguf", .context_tokens = 8192, .threads = 2, .seed = 1, .text_tokens = 511};
  EvalResult exact = {.mode = "exact",
                      .family = "exact",
                      .bits_a_value = 16,
                      .tokens_per_second = 100,
                      .scores = {{"needle", 8, 6, 6}, {"words", 8, 0, 0}},
                      .text = Score()};
  const std::vector<float> likely = {2, 1}, other = {1, 2};
  exact.text->add(likely, 0);
  EvalResult recall = {.mode = "recall+q4",
                       .family = "recall+codec",
                       .bits_a_value = 4,
                       .tokens_per_second = 250,
                       .scores = {{"needle", 8, 6, 3}, {"words", 8, 0, 0}},
                       .text = Score()};
  recall.kv.recall_choices = 10;
  recall.kv.recall_tokens_read = 1024;
  recall.kv.kv_bytes_peak = 3U << 20U;
  recall.text->add(likely, 0);
  recall.text->compare(likely, other);
  report.results = {exact, recall};
  return report;
}

TEST(EvalReport, TheTableSaysWhatTheFullCacheSolvesAndHowManyOfTheseTheOthersDo) {
  std::ostringstream out;
  print_eval(out, example());
  for (const char* part : {"m.gguf, contexts of 8,192 tokens", "6 of 8", "50.0 %", "1024", "3 MiB",
                           "250.0", "511 predictions"}) {
    EXPECT_NE(out.str().find(part), std::string::npos) << part << "\n" << out.str();
  }
  EXPECT_NE(eval_markdown(example()).find("| exact | 16.0 |"), std::string::npos)
      << eval_markdown(example());
}

TEST(EvalReport, BudgetIsThePartThatIsKeptTimesThePartThatIsRead) {
  const EvalReport report = example();
  EXPECT_DOUBLE_EQ(report.budget(report.results[0]), 100);
  EXPECT_DOUBLE_EQ(report.budget(report.results[1]), 100.0 / 4 / 8);
}

TEST(EvalReport, WhatTheFullCacheDoesNotSolveCountsNowhere) {
  const EvalReport report = example();
  EXPECT_FALSE(report.results[1].scores[1].agreement());
  EXPECT_DOUBLE_EQ(*report.results[1].agreement(), 0.5);
}

TEST(EvalReport, JsonHasEveryFigure) {
  const auto json = nlohmann::json::parse(eval_json(example()));
  EXPECT_EQ(json["context_tokens"], 8192);
  ASSERT_EQ(json["modes"].size(), 2U);
  const auto& exact = json["modes"][0];
  EXPECT_TRUE(exact["tokens_read"].is_null());
  EXPECT_FALSE(exact.contains("kl_mean"));
  const auto& recall = json["modes"][1];
  EXPECT_EQ(recall["mode"], "recall+q4");
  EXPECT_EQ(recall["tokens_read"], 1024.0);
  EXPECT_EQ(recall["kv_bytes_peak"], 3U << 20U);
  EXPECT_EQ(recall["tasks"][0]["solved_by_exact"], 6);
  EXPECT_EQ(recall["tasks"][0]["agreement"], 0.5);
  EXPECT_TRUE(recall["tasks"][1]["agreement"].is_null());
  EXPECT_GT(recall["kl_mean"], 0.0);
  EXPECT_EQ(recall["same_top1"], 0.0);
}

TEST(EvalReport, JsonNamesNoMassThatNobodyMeasured) {
  EvalReport report = example();
  const auto left_out = [&](std::size_t mode) {
    return nlohmann::json::parse(eval_json(report))["modes"][mode]["mass_left_out"];
  };
  EXPECT_EQ(left_out(0), 0.0) << "exact leaves nothing out";
  EXPECT_TRUE(left_out(1).is_null()) << "as in window and sparse";
  report.results[1].kv.recall_mass_left_out = 0.25;
  EXPECT_EQ(left_out(1), 0.25);
}

TEST(EvalReport, ChartsAreOfQualityAndSpeed) {
  const auto charts = eval_charts(example());
  ASSERT_EQ(charts.size(), 2U);
  EXPECT_EQ(charts[0].first, "eval-quality.svg");
  EXPECT_EQ(charts[1].first, "eval-speed.svg");
  for (const auto& [name, svg] : charts) {
    EXPECT_NE(svg.find(">recall+codec<"), std::string::npos) << name;
  }
}

TEST(EvalReport, WithoutQuestionsThereIsNoChart) {
  EvalReport report = example();
  for (EvalResult& result : report.results) {
    result.scores.clear();
    result.tokens_per_second = 0;
  }
  EXPECT_TRUE(eval_charts(report).empty());
}

}  // namespace
}  // namespace headrace
