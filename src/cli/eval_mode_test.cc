#include "cli/eval_mode.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace {
namespace {

ModelInfo model() {
  ModelInfo info;
  info.layers = 10;
  info.kv_heads = 2;
  info.head_dim = 64;
  return info;
}

EvalMode make(const std::string& name) {
  EngineOptions options;
  options.context = 8192;
  const Result<EvalMode> mode = make_eval_mode(name, options, model());
  EXPECT_TRUE(mode.ok()) << name;
  return mode.ok() ? *mode : EvalMode();
}

TEST(EvalMode, ExactIsTheFullCache) {
  const EvalMode mode = make(exact_mode);
  EXPECT_EQ(mode.options.attention.mode, AttentionMode::exact);
  EXPECT_EQ(mode.options.kv.codec, "raw");
  EXPECT_EQ(mode.options.kv.memory_bytes, 0U);
  EXPECT_DOUBLE_EQ(mode.bits_a_value, 16.125) << "i16 has a scale per key";
}

TEST(EvalMode, EachHasWhatItsNameSays) {
  EXPECT_EQ(make("recall").options.attention.mode, AttentionMode::recall);
  EXPECT_GT(make("recall-16").options.attention.recall_share,
            make("recall").options.attention.recall_share);
  EXPECT_TRUE(make("recall-layer").options.attention.recall_by_layer);
  EXPECT_EQ(make("window").options.attention.mode, AttentionMode::window);
  EXPECT_EQ(make("kv-q8").options.kv.type, KvType::q8);
  EXPECT_DOUBLE_EQ(make("kv-q8").bits_a_value, 8.5);
  EXPECT_EQ(make("q4").options.kv.codec, "q4");
  EXPECT_EQ(make("eighth").options.kv.memory_bytes, 8192ULL * 10 * 2 * 2 * 129 / 8);
}

TEST(EvalMode, RecallLeavesOutTokensOfShortContextsToo) {
  EXPECT_EQ(make("recall").options.attention.recall_tokens, AttentionOptions().recall_tokens);
  EngineOptions options;
  options.context = 2048;
  EXPECT_EQ(make_eval_mode("recall", options, model())->options.attention.recall_tokens, 512U);
  EXPECT_EQ(make_eval_mode("sparse", options, model())->options.attention.sparse_tokens, 256U);
  const AttentionOptions window = make_eval_mode("window", options, model())->options.attention;
  EXPECT_EQ(window.recall_first + window.window_tokens, 256U);
}

TEST(EvalMode, SeveralAddUp) {
  const EvalMode mode = make("recall-16+q4");
  EXPECT_EQ(mode.name, "recall-16+q4");
  EXPECT_EQ(mode.family, "recall+codec");
  EXPECT_EQ(mode.options.attention.mode, AttentionMode::recall);
  EXPECT_EQ(mode.options.kv.codec, "q4");
  EXPECT_DOUBLE_EQ(mode.bits_a_value, make("q4").bits_a_value);
}

TEST(EvalMode, AnUnknownNameListsThoseThatThereAre) {
  for (const char* name : {"warp", "recall+", "+q4", ""}) {
    const Result<EvalMode> mode = make_eval_mode(name, {}, model());
    ASSERT_FALSE(mode.ok()) << name;
    EXPECT_EQ(mode.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(mode.error().message.find("recall-16"), std::string::npos);
  }
}

TEST(EvalMode, ARunThatNamesNoneHasTheFullCacheFirst) {
  const std::vector<std::string> names = default_eval_mode_names();
  EXPECT_EQ(names.front(), exact_mode);
  EXPECT_EQ(std::ranges::count(names, "eighth"), 0);
  for (const std::string& name : names) EXPECT_EQ(make(name).name, name);
}

}  // namespace
}  // namespace headrace
