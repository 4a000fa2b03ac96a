// What every codec must do.
#include "codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/hash.h"
#include "codec/codec_test_pages.h"
#include "codec/codecs.h"
#include "codec/group_layout.h"
#include "codec/map_codec.h"

namespace headrace {
namespace {

std::vector<std::byte> encode(const Codec& codec, const PagePlan& plan, Bytes page) {
  std::vector<std::byte> out(codec.encoded_bytes_max(plan.shape), std::byte{0xAA});
  const std::uint64_t used = codec.encode(plan, page, out);
  EXPECT_LE(used, out.size());
  out.resize(used);
  out.shrink_to_fit();  // so that a sanitizer sees a read behind the end
  return out;
}

std::vector<std::byte> decode(const Codec& codec, const PagePlan& plan, Bytes encoded) {
  std::vector<std::byte> page(plan.shape.bytes(), std::byte{0xEE});
  const auto decoded = codec.decode(plan, encoded, page);
  EXPECT_TRUE(decoded.ok()) << describe(plan) << ": " << decoded.error().message;
  return page;
}

std::vector<PagePlan> plans() {
  std::vector<PagePlan> plans;
  for (const KvType type : kv_types) {
    for (const std::uint32_t head_dim : {32U, 64U, 80U, 96U, 128U, 256U}) {
      if (type == KvType::q8 && head_dim % 32 != 0) continue;
      const PageShape shape = {.tokens = 64, .kv_heads = 2, .head_dim = head_dim, .type = type};
      for (const std::uint32_t held : {64U, 1U, 16U, 37U}) {
        // Of the lossy codecs: all in 8 bits, all in 4, and only the first tile in 8.
        for (const std::uint32_t layer : {1U, 7U, 8U}) {
          plans.push_back({shape, held, layer, 30, layer == 7 ? 640U : 0U});
        }
      }
    }
  }
  return plans;
}

/// Of a precision map in whose 30 layers of 2 heads every precision meets every other.
const Codec& mixed_map_codec() {
  static const auto codec = new_map_codec([] {
    PrecisionMap map = {.model = std::string(32, '0'), .kv_heads = 2, .heads = {}};
    for (unsigned head = 0; head < 60; ++head) {
      map.heads.push_back({precisions[head % 3], precisions[head / 3 % 3]});
    }
    return map;
  }());
  return *codec;
}

const Codec& codec_named(std::string_view name) {
  return name == "map" ? mixed_map_codec() : **find_codec(name);
}

class Codecs : public testing::TestWithParam<const char*> {
 protected:
  const Codec& codec_ = codec_named(GetParam());
};

TEST_P(Codecs, IsFoundByItsNumberAndItsName) {
  ASSERT_NE(find_codec(codec_.id()), nullptr);
  EXPECT_EQ(find_codec(codec_.id())->id(), codec_.id());
  EXPECT_STREQ(to_string(codec_.id()), GetParam());
  EXPECT_EQ(codec_names().find(GetParam()) == std::string::npos, codec_.id() == CodecId::map)
      << "a map is no name but a file";
}

TEST_P(Codecs, WhatItEncodesIsDecodedByItsNumberAlone) {
  for (const PagePlan& plan : plans()) {
    const std::vector<std::byte> encoded = encode(codec_, plan, model_page(plan));
    ASSERT_EQ(decode(*find_codec(codec_.id()), plan, encoded), decode(codec_, plan, encoded));
  }
}

TEST_P(Codecs, GivesBackAWholePage) {
  for (const PagePlan& plan : plans()) {
    const std::vector<std::byte> page = model_page(plan);
    const std::vector<std::byte> back = decode(codec_, plan, encode(codec_, plan, page));
    if (codec_.is_lossless()) {
      ASSERT_EQ(back, page) << describe(plan);
    }
  }
}

TEST_P(Codecs, AnyBitsGoThroughALosslessCodec) {
  if (!codec_.is_lossless()) GTEST_SKIP();
  for (const PagePlan& plan : plans()) {
    const std::vector<std::byte> page = noise_page(plan);
    ASSERT_EQ(decode(codec_, plan, encode(codec_, plan, page)), page) << describe(plan);
    const std::vector<std::byte> zeros(page.size());
    ASSERT_EQ(decode(codec_, plan, encode(codec_, plan, zeros)), zeros) << describe(plan);
  }
}

TEST_P(Codecs, GroupsThatCanBeHadAloneAreThoseOfThePage) {
  for (const PagePlan& plan : plans()) {
    const std::uint64_t bytes = codec_.encoded_group_bytes(plan.shape);
    if (bytes == 0) continue;
    const std::vector<std::byte> page = model_page(plan);
    const std::vector<std::byte> encoded = encode(codec_, plan, page);
    std::vector<std::byte> group(group_bytes(plan.shape)), expected(group.size());
    for (std::uint32_t i = 0; i < group_count(plan.tokens_held); ++i) {
      ASSERT_TRUE(
          codec_.decode_group(plan, i, Bytes(encoded).subspan(i * bytes, bytes), group).ok());
      encode_group(plan.shape, i, page, expected);
      ASSERT_EQ(group, expected) << describe(plan) << ", group " << i;
    }
  }
}

TEST_P(Codecs, EncodesTheSameBytesEachTime) {
  for (const PagePlan& plan : plans()) {
    const std::vector<std::byte> page = model_page(plan);
    ASSERT_EQ(encode(codec_, plan, page), encode(codec_, plan, page)) << describe(plan);
  }
}

TEST_P(Codecs, APageCutShortAtAnyLengthIsRefused) {
  for (const KvType type : kv_types) {
    const PagePlan plan = {{16, 2, 32, type}, 16, 7, 30, 640};
    const std::vector<std::byte> good = encode(codec_, plan, model_page(plan));
    std::vector<std::byte> page(plan.shape.bytes());
    for (std::size_t length = 0; length < good.size(); ++length) {
      const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<long>(length));
      const auto decoded = codec_.decode(plan, cut, page);
      ASSERT_FALSE(decoded.ok()) << describe(plan) << ", " << length;
      ASSERT_EQ(decoded.error().code, ErrorCode::corrupt);
    }
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(codec_.decode(plan, longer, page).ok()) << describe(plan);
  }
}

TEST_P(Codecs, DamageDecodesToAPageOrAnErrorAndNothingElse) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  for (const KvType type : kv_types) {
    const PagePlan plan = {{64, 2, 64, type}, 50, 7, 30, 640};
    const std::vector<std::byte> good = encode(codec_, plan, model_page(plan));
    std::vector<std::byte> page(plan.shape.bytes());
    for (int round = 0; round < 300; ++round) {
      std::vector<std::byte> bytes = good;
      for (auto changes = random() % 8 + 1; changes > 0; --changes) {
        // Half of them in the front, where tables are.
        const std::size_t range =
            random() % 2 == 0 ? bytes.size() : std::min<std::size_t>(800, bytes.size());
        bytes[random() % range] = static_cast<std::byte>(random());
      }
      if (random() % 4 == 0) bytes.resize(random() % bytes.size());
      bytes.shrink_to_fit();
      const auto decoded = codec_.decode(plan, bytes, page);
      ASSERT_TRUE(decoded.ok() || decoded.error().code == ErrorCode::corrupt);
    }
    for (int round = 0; round < 300; ++round) {
      std::vector<std::byte> bytes(random() % (2 * good.size()));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      if (!bytes.empty()) bytes[0] = static_cast<std::byte>(random() % 2);
      (void)codec_.decode(plan, bytes, page).ok();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Codecs,
                         testing::Values("raw", "lossless", "q8", "k8v4", "q4", "q8-delta",
                                         "k8v4-delta", "q4-delta", "map"),
                         [](const auto& codec) {
                           std::string name = codec.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Codecs, MakePagesSmallerWhereTheySaySo) {
  for (const CodecId id : {CodecId::raw, CodecId::lossless, CodecId::q8, CodecId::k8v4, CodecId::q4,
                           CodecId::q8_delta, CodecId::k8v4_delta, CodecId::q4_delta}) {
    for (const KvType type : kv_types) {
      const Codec& codec = *find_codec(id);
      const PagePlan plan = {{256, 3, 64, type}, 256, 7, 30, 512};
      const std::vector<std::byte> page = model_page(plan);
      EXPECT_EQ(makes_smaller(codec, plan.shape), encode(codec, plan, page).size() < page.size())
          << to_string(id) << ", " << describe(plan);
    }
  }
  EXPECT_TRUE(makes_smaller(mixed_map_codec(), {16, 2, 32, KvType::q8}))
      << "it has heads of 4 bits";
}

TEST(LosslessCodec, SavesWhatTheTypeLeavesRoomFor) {
  struct Case {
    KvType type;
    double most;  // of the bytes of the page
  };
  for (const Case& c : {Case{KvType::f16, 0.86}, Case{KvType::bf16, 0.7}, Case{KvType::i16, 0.72},
                        Case{KvType::f32, 0.85}, Case{KvType::q8, 1.001}}) {
    const PagePlan plan = {{256, 3, 64, c.type}, 256, 7, 30, 512};
    const std::vector<std::byte> page = model_page(plan);
    EXPECT_LE(static_cast<double>(encode(*find_codec(CodecId::lossless), plan, page).size()),
              c.most * static_cast<double>(page.size()))
        << describe(plan);
  }
}

TEST(LosslessCodec, TilesBehindTheTokensCostNothing) {
  const Codec& codec = *find_codec(CodecId::lossless);
  for (const KvType type : kv_types) {
    const PagePlan tail = {{256, 3, 64, type}, 16, 7, 30, 512};
    const PagePlan small = {{16, 3, 64, type}, 16, 7, 30, 512};
    EXPECT_EQ(encode(codec, tail, model_page(tail)), encode(codec, small, model_page(small)))
        << describe(tail);
  }
}

TEST(LosslessCodec, NoiseIsStoredRawForOneByte) {
  const PagePlan plan = {{64, 2, 64, KvType::f16}, 64, 7, 30, 640};
  std::mt19937 random(7);
  std::vector<std::byte> page(plan.shape.bytes());
  for (std::byte& byte : page) byte = static_cast<std::byte>(random());
  EXPECT_EQ(encode(*find_codec(CodecId::lossless), plan, page).size(), page.size() + 1);
}

/// Keys and values of a page of f32, [kv head][tile][dim][16 tokens].
struct PageValues {
  std::vector<float> k;
  std::vector<float> v;
};
PageValues values_of(const PagePlan& plan, std::vector<std::byte>& page) {
  const PageShape& shape = plan.shape;
  const std::size_t tile = std::size_t{tile_tokens} * shape.head_dim;
  PageValues values;
  values.k.resize(shape.kv_heads * shape.tiles() * tile);
  values.v.resize(values.k.size());
  std::size_t at = 0;
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (std::uint32_t i = 0; i < shape.tiles(); ++i, at += tile) {
      kernel::kernels().load_tile(
          {page.data() + shape.k_offset(head), page.data() + shape.v_offset(head), shape.type,
           shape.tokens, shape.head_dim},
          i, &values.k[at], &values.v[at]);
    }
  }
  return values;
}

/// A page of f32 whose values are `change`d before it goes through q4-delta.
struct Cut {
  PagePlan plan = {{256, 3, 64, KvType::f32}, 256, 7, 30, 512};
  PageValues before;
  PageValues after;
  double bits = 0;  ///< a value

  template <typename Change>
  explicit Cut(Change change) {
    std::vector<std::byte> page = model_page(plan);
    change(reinterpret_cast<float*>(page.data()), page.size() / sizeof(float));
    const Codec& codec = *find_codec(CodecId::q4_delta);
    const std::vector<std::byte> encoded = encode(codec, plan, page);
    std::vector<std::byte> back = decode(codec, plan, encoded);
    before = values_of(plan, page);
    after = values_of(plan, back);
    bits = static_cast<double>(encoded.size()) * 8 / (2.0 * 256 * 3 * 64);
  }
};

/// Where V of a head and token is in a page of Cut: [token][dim] behind K.
std::size_t value_at(std::size_t head, std::size_t token) {
  return (2 * head + 1) * 256 * 64 + token * 64;
}

TEST(LevelCodec, TakesLessThanFourBitsAndLosesLittle) {
  const Cut cut([](float*, std::size_t) {});
  EXPECT_LT(cut.bits, 3.6);
  double key_error = 0;
  double key_spread = 0;
  for (std::size_t first = 0; first < cut.before.k.size(); first += 64 * tile_tokens) {
    for (std::size_t i = first; i < first + std::size_t{64} * tile_tokens; i += tile_tokens) {
      double mean = 0;
      for (std::size_t t = i; t < i + tile_tokens; ++t) mean += cut.before.k[t] / tile_tokens;
      for (std::size_t t = i; t < i + tile_tokens; ++t) {
        key_error += std::pow(cut.after.k[t] - cut.before.k[t], 2);
        key_spread += std::pow(cut.before.k[t] - mean, 2);
      }
    }
  }
  EXPECT_LT(key_error, 0.012 * key_spread);
}

TEST(LevelCodec, EachValueIsWithinHalfAStepHoweverQuietItsTokenIs) {
  const Cut cut([](float* values, std::size_t) {
    for (std::size_t head = 0; head < 3; ++head) {
      for (std::size_t token = 0; token < 256; ++token) {
        float* row = values + value_at(head, token);
        const float factor = std::ldexp(1.0F, static_cast<int>(token % 12) - 10);
        for (std::size_t dim = 0; dim < 64; ++dim) row[dim] *= factor;
      }
    }
  });
  for (std::size_t first = 0; first < cut.before.v.size(); first += 64 * tile_tokens) {
    for (std::size_t t = first; t < first + tile_tokens; ++t) {
      double square = 0;
      for (std::size_t d = 0; d < 64; ++d) square += std::pow(cut.before.v[t + d * tile_tokens], 2);
      // Half a step of half the spread, which is rounded to one of two in a power of two.
      const double bound = 0.5 * 0.5 * 1.25 * std::sqrt(square / 64);
      for (std::size_t d = 0; d < 64; ++d) {
        const std::size_t i = t + d * tile_tokens;
        ASSERT_NEAR(cut.after.v[i], cut.before.v[i], bound) << i;
      }
    }
  }
}

TEST(LevelCodec, AKeyFarOffIsNotCutOff) {
  const Cut cut([](float* values, std::size_t) {
    values[5 * 16 + 3] = 5000.0F;  // K: [tile][dim][16 tokens]
  });
  EXPECT_NEAR(cut.after.k[5 * 16 + 3], 5000.0F, 5000.0F / 127.0F);
  EXPECT_LT(cut.bits, 3.6);
}

TEST(LevelCodec, SilenceStaysSilentAndWhatIsNotFiniteIsLeftToQ8) {
  const Cut silence([](float* values, std::size_t count) { std::fill_n(values, count, 0.0F); });
  EXPECT_EQ(silence.after.k, silence.before.k);
  EXPECT_EQ(silence.after.v, silence.before.v);
  for (const std::size_t at : {std::size_t{100}, value_at(1, 7)}) {
    for (const float odd : {HUGE_VALF, std::nanf(""), 3e38F}) {
      const Cut cut([&](float* values, std::size_t) { values[at] = odd; });
      EXPECT_GT(cut.bits, 8.0) << at << " " << odd;
      EXPECT_NEAR(cut.after.v[0], cut.before.v[0], 0.02F);
    }
  }
}

TEST(LevelCodec, APageOfLevelsCutShortAtAnyLengthIsRefused) {
  const PagePlan plan = {{64, 1, 64, KvType::f16}, 64, 7, 30, 640};
  const Codec& codec = *find_codec(CodecId::q4_delta);
  const std::vector<std::byte> good = encode(codec, plan, model_page(plan));
  ASSERT_EQ(good[0], stored_coded);
  std::vector<std::byte> page(plan.shape.bytes());
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<long>(length));
    const auto decoded = codec.decode(plan, cut, page);
    ASSERT_FALSE(decoded.ok()) << length;
    ASSERT_EQ(decoded.error().code, ErrorCode::corrupt);
  }
}

TEST(LevelCodec, ThePageOfATextsFirstTokensKeepsThemAsQ8) {
  const PagePlan plan = {{64, 2, 64, KvType::f32}, 64, 7, 30, 0};
  std::vector<std::byte> page = model_page(plan);
  std::vector<std::byte> q8 = decode(q8_codec(), plan, encode(q8_codec(), plan, page));
  const Codec& codec = *find_codec(CodecId::q4_delta);
  std::vector<std::byte> back = decode(codec, plan, encode(codec, plan, page));
  const PageValues expected = values_of(plan, q8);
  const PageValues actual = values_of(plan, back);
  const std::size_t tile = std::size_t{tile_tokens} * 64;
  for (const std::size_t first : {std::size_t{0}, 4 * tile}) {
    for (std::size_t i = first; i < first + tile; ++i) {
      ASSERT_EQ(actual.k[i], expected.k[i]);
      ASSERT_EQ(actual.v[i], expected.v[i]);
    }
    EXPECT_NE(actual.k[first + tile], expected.k[first + tile]);
  }
}

std::string digest_of_all_codecs() {
  Hasher hasher;
  for (const PagePlan& plan : plans()) {
    const std::vector<std::byte> page = model_page(plan);
    for (const char* name :
         {"lossless", "q8", "k8v4", "q4", "q8-delta", "k8v4-delta", "q4-delta", "map"}) {
      const Codec& codec = codec_named(name);
      const std::vector<std::byte> encoded = encode(codec, plan, page);
      hasher.field(encoded).field(decode(codec, plan, encoded));
    }
  }
  return to_hex(hasher.finish());
}

TEST(CodecsDeathTest, EveryInstructionSetEncodesAndDecodesTheSameBits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* before = std::getenv("HEADRACE_FORCE_ISA");
  const std::string kept = before == nullptr ? "" : before;
  const std::string expected = digest_of_all_codecs();
  for (const kernel::KernelTable* table : kernel::tables_here()) {
    ::setenv("HEADRACE_FORCE_ISA", table->name, 1);
    EXPECT_EXIT(
        {
          std::fprintf(stderr, "%s", digest_of_all_codecs().c_str());
          std::exit(0);
        },
        testing::ExitedWithCode(0), expected)
        << table->name;
  }
  ::setenv("HEADRACE_FORCE_ISA", kept.c_str(), 1);
}

/// The worked examples of docs/formats/codecs.md: 16 tokens, one head of 16 dims.
TEST(Codecs, KeepTheirGoldenBytes) {
  // If this fails a format has changed: give it a new number instead.
  const PagePlan plan = {{16, 1, 16, KvType::f16}, 16, 7, 30, 640};
  std::vector<std::byte> page(plan.shape.bytes());
  std::vector<float> row(16);
  for (std::uint32_t token = 0; token < 16; ++token) {
    for (std::uint32_t dim = 0; dim < 16; ++dim) {
      row[dim] = static_cast<float>(static_cast<int>((token * 5 + dim * 3) % 16) - 8) / 8.0F;
    }
    kernel::kernels().store_kv(
        row.data(), row.data(), 0, token, 1,
        {page.data(), page.data() + plan.shape.v_offset(0), KvType::f16, 16, 16});
  }
  std::string digests;
  const PagePlan larger = {{64, 2, 64, KvType::i16}, 50, 7, 30, 640};
  for (const auto id : {0, 1, 2, 3, 4, 18, 19, 21}) {
    const Codec& codec = *find_codec(CodecId(static_cast<std::uint16_t>(id)));
    digests += to_string(codec.id());
    for (const std::vector<std::byte>& encoded :
         {encode(codec, plan, page), encode(codec, larger, model_page(larger))}) {
      digests +=
          " " + std::to_string(encoded.size()) + " " + to_hex(hash_bytes(encoded)).substr(0, 16);
    }
    digests += "\n";
  }
  EXPECT_EQ(digests, R"(raw 1024 a87135611afe1422 28896 6c0d5b590bf31d24
lossless 1025 8075bb542cd61b4c 23929 833b07e4376c9989
q8 576 edd32148d0978c81 17408 1217126a0dcd59ca
k8v4 432 f263e8a8d0899071 13056 9af2c970bb174d40
q4 320 871ec25149af3a49 8960 4808675ac6554d1e
q8-delta 577 65b998841e775101 14983 44740cb0555d2065
k8v4-delta 433 a82bb7fad061eb79 10948 8cd93abd8e2a50fb
q4-delta 577 65b998841e775101 7205 9c0a1404a38751a7
)");
}

TEST(Codec, AnUnknownNameIsRefusedWithThoseThatThereAre) {
  const auto found = find_codec("zip");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(found.error().message.find("lossless"), std::string::npos);
  EXPECT_EQ(find_codec(CodecId{999}), nullptr);
  EXPECT_EQ(find_codec(CodecId{20}), nullptr) << "pages of the former q4-delta are not misread";
}

}  // namespace
}  // namespace headrace
