// What every codec must do.
#include "codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/hash.h"
#include "codec/codec_test_pages.h"
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
  for (const auto id : {0, 1, 2, 3, 4, 18, 19, 20}) {
    const Codec& codec = *find_codec(CodecId(static_cast<std::uint16_t>(id)));
    digests += to_string(codec.id());
    for (const std::vector<std::byte>& encoded :
         {encode(codec, plan, page), encode(codec, larger, model_page(larger))}) {
      digests +=
          " " + std::to_string(encoded.size()) + " " + to_hex(hash_bytes(encoded)).substr(0, 16);
    }
    digests += "\n";
  }
  EXPECT_EQ(digests, R"(raw 1024 a87135611afe1422 28896 e2319da351d29449
lossless 1025 8075bb542cd61b4c 23929 5c5535a01f2e356f
q8 576 edd32148d0978c81 17408 1217126a0dcd59ca
k8v4 432 f263e8a8d0899071 13056 9af2c970bb174d40
q4 320 871ec25149af3a49 8960 4808675ac6554d1e
q8-delta 577 65b998841e775101 14983 44740cb0555d2065
k8v4-delta 433 a82bb7fad061eb79 10948 8cd93abd8e2a50fb
q4-delta 321 53e71760096bf400 8594 937073817d767b75
)");
}

TEST(Codec, AnUnknownNameIsRefusedWithThoseThatThereAre) {
  const auto found = find_codec("zip");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(found.error().message.find("lossless"), std::string::npos);
  EXPECT_EQ(find_codec(CodecId{999}), nullptr);
}

}  // namespace
}  // namespace headrace
