#include "codec/precision_map.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace headrace {
namespace {

const std::string model = "0123456789abcdef0123456789abcdef";

/// The example of docs/formats/precision_map.md.
const std::string example =
    "headrace precision map 1\n"
    "model 0123456789abcdef0123456789abcdef\n"
    "layers 2\n"
    "heads 3\n"
    "0 raw/q8 q8/q8 q8/q4\n"
    "1 q8/q4 q4/q4 q4/q4\n";

TEST(PrecisionMap, TheExampleIsReadAndWrittenAsItIs) {
  const auto map = parse_precision_map(example);
  ASSERT_TRUE(map.ok()) << map.error().message;
  EXPECT_EQ(map->model, model);
  EXPECT_EQ(map->layers(), 2U);
  EXPECT_EQ(map->kv_heads, 3U);
  EXPECT_EQ(map->head(0, 0), (HeadPrecision{Precision::raw, Precision::q8}));
  EXPECT_EQ(map->head(1, 0), (HeadPrecision{Precision::q8, Precision::q4}));
  EXPECT_EQ(to_text(*map), example);
  EXPECT_NEAR(map->mean_bits(), (16 + 5 * 8.5 + 6 * 4.3) / 12, 1e-9);
}

TEST(PrecisionMap, AnyMapComesBackFromItsText) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    PrecisionMap map = {model, static_cast<std::uint32_t>(random() % 8 + 1), {}};
    map.heads.resize(map.kv_heads * (random() % 40 + 1));
    for (HeadPrecision& head : map.heads) {
      head = {precisions[random() % 3], precisions[random() % 3]};
    }
    const auto back = parse_precision_map(to_text(map));
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(*back, map);
    EXPECT_EQ(back->digest(), map.digest());
  }
}

TEST(PrecisionMap, CommentsAndSpaceChangeNothing) {
  const auto plain = parse_precision_map(example);
  const auto dressed = parse_precision_map(
      "# by hand\n\nheadrace  precision map 1\r\n\tmodel 0123456789abcdef0123456789abcdef # ours\n"
      "layers 2\nheads 3\n\n0 raw/q8 q8/q8 q8/q4 # first\n 1 q8/q4   q4/q4 q4/q4");
  ASSERT_TRUE(plain.ok() && dressed.ok()) << dressed.error().message;
  EXPECT_EQ(*plain, *dressed);
  EXPECT_EQ(plain->digest(), dressed->digest());
}

TEST(PrecisionMap, WhatIsWrongIsSaidInOneLine) {
  const auto with = [](const std::string& old, const std::string& replacement) {
    std::string text = example;
    const std::size_t at = text.find(old);
    EXPECT_NE(at, std::string::npos);
    return text.replace(at, old.size(), replacement);
  };
  struct Case {
    std::string text;
    const char* mentions;
  };
  for (const Case& c : {
           Case{"", "headrace calibrate"},
           Case{"{\"layers\": 2}", "no precision map"},
           Case{with("map 1", "map 2"), "no precision map"},
           Case{with("model 01", "model 0"), "line 2: a model is named by 32"},
           Case{with("model 01", "model zz"), "line 2: a model is named by 32"},
           Case{with("layers 2\n", ""), "line 3: there must be 'layers'"},
           Case{with("layers 2", "layers two"), "line 3: layers 'two' is no number"},
           Case{with("layers 2", "layers 4097"), "from 1 to 4096"},
           Case{with("heads 3", "heads 0"), "line 4: heads '0' is no number"},
           Case{with("layers 2", "layers 3"), "layer 2 and those after it are missing"},
           Case{with("layers 2", "layers 1"), "line 6: there is more than the 1 layers"},
           Case{with("\n1 ", "\n2 "), "line 6: there must be layer 1, not '2'"},
           Case{with(" q8/q4\n1", "\n1"), "line 5: layer 0 has 2 heads of 3"},
           Case{with("raw/q8", "f8/q8"), "line 5: 'f8/q8' is no precision of a head; give K/V"},
           Case{with("raw/q8", "q8"), "line 5: 'q8' is no precision"},
           Case{with("raw/q8", "q8/q8/q8"), "line 5: 'q8/q8/q8' is no precision"},
       }) {
    const auto map = parse_precision_map(c.text);
    ASSERT_FALSE(map.ok()) << c.text;
    EXPECT_EQ(map.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(map.error().message.find(c.mentions), std::string::npos) << map.error().message;
    EXPECT_EQ(map.error().message.find('\n'), std::string::npos) << map.error().message;
  }
}

TEST(PrecisionMap, IsForOneModel) {
  const auto map = parse_precision_map(example);
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(check_precision_map(*map, {model, 2, 3}).ok());
  struct Case {
    MappedModel model;
    const char* mentions;
  };
  for (const Case& c : {Case{{std::string(32, 'f'), 2, 3}, "it is for the model 0123"},
                        Case{{model, 30, 3}, "2 layers of 3 kv heads, and the model has 30"},
                        Case{{model, 2, 1}, "the model has 2 layers of 1 kv heads"}}) {
    const auto checked = check_precision_map(*map, c.model);
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(checked.error().message.find(c.mentions), std::string::npos)
        << checked.error().message;
    EXPECT_NE(checked.error().message.find("headrace calibrate"), std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
