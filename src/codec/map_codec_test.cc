// What the codec of a precision map must do besides what every codec must (codec_test.cc).
#include "codec/map_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hash.h"
#include "codec/codec_test_pages.h"

namespace headrace {
namespace {

constexpr std::uint32_t layers = 30;

PrecisionMap uniform(std::uint32_t kv_heads, HeadPrecision precision) {
  return {std::string(32, '0'), kv_heads,
          std::vector<HeadPrecision>(std::size_t{layers} * kv_heads, precision)};
}

std::vector<std::byte> encode(const Codec& codec, const PagePlan& plan, Bytes page) {
  std::vector<std::byte> out(codec.encoded_bytes_max(plan.shape));
  out.resize(codec.encode(plan, page, out));
  return out;
}

std::vector<std::byte> there_and_back(const Codec& codec, const PagePlan& plan, Bytes page) {
  std::vector<std::byte> back(page.size(), std::byte{0xEE});
  const auto decoded = codec.decode(plan, encode(codec, plan, page), back);
  EXPECT_TRUE(decoded.ok()) << describe(plan);
  return back;
}

std::vector<std::byte> key_of(const PageShape& shape, Bytes page, std::uint32_t head) {
  const Bytes key = page.subspan(shape.k_offset(head), shape.k_bytes());
  return {key.begin(), key.end()};
}
std::vector<std::byte> value_of(const PageShape& shape, Bytes page, std::uint32_t head) {
  const Bytes value = page.subspan(shape.v_offset(head), shape.v_bytes());
  return {value.begin(), value.end()};
}

class MapCodec : public testing::TestWithParam<KvType> {};

TEST_P(MapCodec, RawHeadsComeBackBitForBitBesideOthersThatDoNot) {
  for (const std::uint32_t held : {3U, 16U, 37U, 64U}) {
    const PagePlan plan = {{64, 3, 64, GetParam()}, held, 7, layers, 640};
    PrecisionMap map = uniform(3, {Precision::q4, Precision::q4});
    map.heads[7 * 3 + 1] = {Precision::raw, Precision::q4};
    map.heads[7 * 3 + 2] = {Precision::q4, Precision::raw};
    const std::vector<std::byte> page = noise_page(plan);
    // Noise has infinities, which only raw heads keep; those beside them need numbers.
    const std::vector<std::byte> numbers = model_page(plan);
    const auto back = there_and_back(*new_map_codec(map), plan, numbers);
    const PageShape& shape = plan.shape;
    EXPECT_EQ(key_of(shape, back, 1), key_of(shape, numbers, 1)) << describe(plan);
    EXPECT_EQ(value_of(shape, back, 2), value_of(shape, numbers, 2)) << describe(plan);
    EXPECT_NE(key_of(shape, back, 0), key_of(shape, numbers, 0)) << describe(plan);
    EXPECT_NE(value_of(shape, back, 1), value_of(shape, numbers, 1)) << describe(plan);
    EXPECT_NE(key_of(shape, back, 2), key_of(shape, numbers, 2)) << describe(plan);
    const auto raw = new_map_codec(uniform(3, {Precision::raw, Precision::raw}));
    EXPECT_EQ(there_and_back(*raw, plan, page), page) << describe(plan);
  }
}

TEST_P(MapCodec, HeadsOfOnePrecisionHoldWhatTheCodecOfThatNameHolds) {
  struct Case {
    HeadPrecision precision;
    CodecId same;
  };
  for (const Case& c : {Case{{Precision::q8, Precision::q8}, CodecId::q8},
                        Case{{Precision::q8, Precision::q4}, CodecId::k8v4},
                        Case{{Precision::q4, Precision::q4}, CodecId::q4}}) {
    for (const std::uint32_t first_position : {0U, 640U}) {
      const PagePlan plan = {{64, 2, 64, GetParam()}, 50, 7, layers, first_position};
      const std::vector<std::byte> page = model_page(plan);
      EXPECT_EQ(there_and_back(*new_map_codec(uniform(2, c.precision)), plan, page),
                there_and_back(*find_codec(c.same), plan, page))
          << describe(plan) << ", " << to_string(c.same);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MapCodec, testing::ValuesIn(kv_types),
                         [](const auto& type) { return to_string(type.param); });

TEST(MapCodecs, EachLayerHasItsOwnPrecisions) {
  PrecisionMap map = uniform(1, {Precision::q8, Precision::q8});
  map.heads[12] = {Precision::q4, Precision::q4};
  const auto codec = new_map_codec(map);
  const PageShape shape = {256, 1, 64, KvType::f16};
  const PagePlan fine = {shape, 256, 11, layers, 512};
  const PagePlan coarse = {shape, 256, 12, layers, 512};
  EXPECT_EQ(encode(*codec, fine, model_page(fine)).size(), 1U + 2 * 256 * 68);
  EXPECT_EQ(encode(*codec, coarse, model_page(coarse)).size(), 1U + 2 * 256 * 34 + 64 * 2);
}

TEST(MapCodecs, OfTwoMapsHaveOtherSettingsAndOfOneTheSame) {
  const PrecisionMap map = uniform(2, {Precision::q8, Precision::q8});
  PrecisionMap other = map;
  other.heads[59].value = Precision::q4;
  EXPECT_EQ(new_map_codec(map)->settings(), new_map_codec(map)->settings());
  EXPECT_NE(new_map_codec(map)->settings(), new_map_codec(other)->settings());
  EXPECT_NE(new_map_codec(map)->settings(), find_codec(CodecId::q8)->settings());
}

TEST(MapCodecs, APrecisionThatThereIsNotIsDamage) {
  const auto codec = new_map_codec(uniform(1, {Precision::q8, Precision::q8}));
  const PagePlan plan = {{16, 1, 32, KvType::f16}, 16, 7, layers, 640};
  std::vector<std::byte> page = model_page(plan);
  std::vector<std::byte> encoded = encode(*codec, plan, page);
  for (const auto byte : {std::byte{0x13}, std::byte{0x31}, std::byte{0xFF}}) {
    encoded[0] = byte;
    const auto decoded = codec->decode(plan, encoded, page);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().code, ErrorCode::corrupt);
  }
}

/// The worked example of docs/formats/codecs.md, with K/V q8/raw and q4/q8, and a larger page.
TEST(MapCodecs, KeepTheirGoldenBytes) {
  // If this fails the format has changed: give it a new number instead.
  PrecisionMap map = uniform(2, {Precision::q8, Precision::raw});
  for (std::size_t head = 1; head < map.heads.size(); head += 2) {
    map.heads[head] = {Precision::q4, Precision::q8};
  }
  const auto codec = new_map_codec(map);
  std::string digests;
  for (const PagePlan& plan : {PagePlan{{16, 2, 16, KvType::f16}, 16, 7, layers, 640},
                               PagePlan{{64, 2, 64, KvType::i16}, 50, 7, layers, 0}}) {
    const auto encoded = encode(*codec, plan, model_page(plan));
    digests +=
        std::to_string(encoded.size()) + " " + to_hex(hash_bytes(encoded)).substr(0, 16) + "\n";
  }
  EXPECT_EQ(digests, "1266 7220879e1d2e1951\n19746 da41b80e7571aac4\n");
}

}  // namespace
}  // namespace headrace
