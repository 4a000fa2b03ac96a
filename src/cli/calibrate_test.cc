#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "cli/command_test.h"
#include "cli/exit_code.h"
#include "codec/precision_map.h"

namespace headrace {
namespace {

/// A model of 3 layers and 2 kv heads. Quantising changes its logits: most of all the key of head 1
/// in layer 2, then its value, then a little of everything.
class Calibrate : public CommandTest {
 protected:
  Calibrate() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += static_cast<char>('c' + i % 20);
    write_file("/text", text);
    prepare = [this](FakeEngine& engine, int) {
      const EngineOptions& options = opened.back();
      engine.context_tokens = options.context;
      engine.model_info.layers = 3;
      engine.model_info.kv_heads = 2;
      const float change = change_of(options.kv.codec);
      const float boost = 4.0F + change + (change > 0 ? noise : 0.0F);
      engine.fill_logits = [boost](std::vector<float>& row, std::span<const TokenId> tokens) {
        row.assign(FakeEngine::vocabulary, 0.0F);
        row[static_cast<std::size_t>(tokens.back())] = boost;
      };
      if (more) more(engine);
    };
  }
  std::function<void(FakeEngine&)> more;
  float noise = 0;  // of any change

  static float change_of(const PrecisionMap& map) {
    float change = 0;
    for (std::size_t head = 0; head < map.heads.size(); ++head) {
      const bool matters = head == 5;
      const auto weight = [](Precision precision) {
        return precision == Precision::q4 ? 1.0F : precision == Precision::q8 ? 0.0625F : 0.0F;
      };
      change += weight(map.heads[head].key) * (matters ? 1.0F : 0.01F);
      change += weight(map.heads[head].value) * (matters ? 0.5F : 0.01F);
    }
    return change;
  }
  float change_of(const std::string& codec) {
    if (codec == "raw") return 0;
    if (!codec.starts_with("map:")) return 1;
    const auto text = env.read_file(codec.substr(4));
    EXPECT_TRUE(text.ok()) << text.error().message;
    const auto map = parse_precision_map(*text);
    EXPECT_TRUE(map.ok()) << map.error().message;
    EXPECT_EQ(map->model, FakeEngine().digest) << "of the model that is measured";
    return change_of(*map);
  }
  PrecisionMap map_at(const std::string& path) {
    const auto text = env.read_file(path);
    EXPECT_TRUE(text.ok()) << text.error().message;
    const auto map = parse_precision_map(*text);
    EXPECT_TRUE(map.ok()) << map.error().message;
    return *map;
  }

  std::vector<std::string> calibrate_ = {
      "calibrate", "-m", "m",      "-f", "/text",          "--out", "/map",
      "--context", "40", "--last", "10", "--block-tokens", "16"};
  int run_with(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = calibrate_;
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run(all);
  }
};

TEST_F(Calibrate, GivesTheBitsToTheHeadsThatLoseMost) {
  EXPECT_EQ(run_with({"--bits", "5", "--json"}), exit_ok) << err.str();
  const PrecisionMap map = map_at("/map");
  EXPECT_EQ(map.model, std::string(32, 'a'));
  EXPECT_EQ(map.layers(), 3U);
  EXPECT_EQ(map.kv_heads, 2U);
  EXPECT_LE(map.mean_bits(), 5);
  EXPECT_EQ(map.head(2, 1), (HeadPrecision{Precision::q8, Precision::q8}));
  EXPECT_EQ(map.head(0, 0), (HeadPrecision{Precision::q4, Precision::q4}));
  ASSERT_EQ(json()["heads"].size(), 6U);
  EXPECT_GT(json()["heads"][5]["kl_key_q4"], json()["heads"][5]["kl_value_q4"]);
  EXPECT_GT(json()["heads"][5]["kl_value_q4"], json()["heads"][0]["kl_key_q4"]);
}

TEST_F(Calibrate, MeasuresTheMapBesideTheOtherCodecs) {
  EXPECT_EQ(run_with({"--json"}), exit_ok) << err.str();
  ASSERT_EQ(json()["measured"].size(), 4U);
  const nlohmann::json map = json()["measured"][0];
  EXPECT_EQ(map["codec"], "the map");
  EXPECT_NEAR(map["bits"].get<double>(), map_at("/map").mean_bits(), 1e-9);
  EXPECT_LE(map["bits"].get<double>(), 6.0) << "the default";
  EXPECT_GT(map["kl_mean"].get<double>(), 0);
  EXPECT_EQ(json()["measured"][1]["codec"], "q8");
  EXPECT_NEAR(json()["measured"][1]["bits"].get<double>(), 8.5, 1e-9);
  EXPECT_GT(json()["measured"][3]["kl_mean"].get<double>(), map["kl_mean"].get<double>());
  EXPECT_NE(err.str().find("mean KL"), std::string::npos) << "the table";
}

TEST_F(Calibrate, AnEngineIsOpenedForEachPartAndOneThatQuantisesNothing) {
  EXPECT_EQ(run_with({}), exit_ok) << err.str();
  EXPECT_EQ(opened.size(), 1U + 1 + 2 * 6 + 4) << "and one for the noise";
  EXPECT_EQ(opened[0].kv.codec, "raw");
  EXPECT_NE(out.str().find("mean KL"), std::string::npos);
}

TEST_F(Calibrate, ALimitOfKlIsKeptWithAsFewBitsAsThatTakes) {
  EXPECT_EQ(run_with({"--kl", "0.001", "--json"}), exit_ok) << err.str();
  const double loose = map_at("/map").mean_bits();
  EXPECT_LE(json()["measured"][0]["kl_mean"].get<double>(), 0.001);
  out.str("");
  EXPECT_EQ(run_with({"--kl", "0.00001", "--json"}), exit_ok) << err.str();
  EXPECT_LE(json()["measured"][0]["kl_mean"].get<double>(), 0.00001);
  EXPECT_GT(map_at("/map").mean_bits(), loose);
}

TEST_F(Calibrate, AMapForAnotherFileOfTheModelHasThatOnesDigest) {
  more = [this](FakeEngine& engine) {
    if (opened.back().model_path == "other") engine.digest = std::string(32, 'b');
  };
  EXPECT_EQ(run_with({"--for", "other"}), exit_ok) << err.str();
  EXPECT_EQ(map_at("/map").model, std::string(32, 'b'));
  more = [this](FakeEngine& engine) {
    if (opened.back().model_path == "other") engine.model_info.layers = 4;
  };
  EXPECT_EQ(run_with({"--for", "other"}), exit_usage);
  EXPECT_NE(err.str().find("a file of the same model"), std::string::npos) << err.str();
}

TEST_F(Calibrate, SaysSoWhenRoundingHidesWhatHeadsLose) {
  EXPECT_EQ(run_with({}), exit_ok);
  EXPECT_EQ(err.str().find("rounding hides"), std::string::npos) << err.str();
  noise = 0.5F;
  EXPECT_EQ(run_with({}), exit_ok);
  EXPECT_NE(err.str().find("rounding hides"), std::string::npos) << err.str();
  EXPECT_NE(err.str().find("--for"), std::string::npos) << err.str();
}

TEST_F(Calibrate, LeavesNothingButTheMap) {
  EXPECT_EQ(run_with({}), exit_ok) << err.str();
  const std::string scratch = opened.back().kv.codec;
  EXPECT_EQ(scratch, "q4");
  const std::string path = opened[1].kv.codec.substr(4);
  EXPECT_FALSE(env.exists(path));
}

TEST_F(Calibrate, WhatCannotBeMeasuredIsSaidInOneLine) {
  struct Case {
    std::vector<std::string> arguments;
    const char* mentions;
  };
  for (const Case& c :
       {Case{{"--context", "60"}, "give it a longer text"},
        Case{{"--last", "30"}, "give a larger --context"}, Case{{"--last", "1"}, "at least 2"},
        Case{{"--bits", "4"}, "--bits"}, Case{{"--kl", "0"}, "--kl"},
        Case{{"--kl", "0.1", "--bits", "6"}, "--bits"}}) {
    err.str("");
    std::vector<std::string> arguments = calibrate_;
    // The last of two settings of an option counts for neither: leave out the first.
    for (std::size_t i = 0; i + 1 < c.arguments.size(); i += 2) {
      for (std::size_t at = 0; at < arguments.size(); ++at) {
        if (arguments[at] != c.arguments[i]) continue;
        arguments.erase(arguments.begin() + static_cast<long>(at),
                        arguments.begin() + static_cast<long>(at) + 2);
      }
    }
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    EXPECT_EQ(run(arguments), exit_usage) << c.mentions;
    EXPECT_NE(err.str().find(c.mentions), std::string::npos) << err.str();
    EXPECT_FALSE(env.exists("/map"));
  }
}

TEST_F(Calibrate, CtrlCExits130AndWritesNoMap) {
  interrupts.notice(SIGINT);
  EXPECT_EQ(run_with({}), exit_interrupted);
  EXPECT_FALSE(env.exists("/map"));
}

}  // namespace
}  // namespace headrace
