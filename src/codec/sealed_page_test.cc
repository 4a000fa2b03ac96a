#include "codec/sealed_page.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

namespace headrace {
namespace {

using PageBytes = std::array<std::byte, sealed_page_bytes>;

SealedPage example() {
  return {
      .identity = {.key = {.block = {.low = 0x0123'4567'89AB'CDEF, .high = 0xFEDC'BA98'7654'3210},
                           .layer = 7},
                   .model = {.low = 0x0011'2233'4455'6677, .high = 0x8899'AABB'CCDD'EEFF},
                   .first_position = 512,
                   .shape = {.tokens = 256, .kv_heads = 3, .head_dim = 64, .type = KvType::f16},
                   .tokens_held = 200},
      .codec = CodecId::raw,
      .checksum = {.low = 1, .high = 2}};
}

PageBytes encoded(const SealedPage& page) {
  PageBytes bytes;
  bytes.fill(std::byte{0xAA});
  encode_sealed_page(page, bytes);
  return bytes;
}

std::string refusal(const Result<void>& result) {
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.error().code, ErrorCode::corrupt);
  return result.error().message;
}

TEST(SealedPage, SurvivesARoundTrip) {
  const auto decoded = decode_sealed_page(encoded(example()));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(*decoded, example());
}

TEST(SealedPage, APageIsFullUnlessItSaysOtherwise) {
  const PageIdentity identity{
      .key = {}, .model = {}, .shape = {.tokens = 64, .kv_heads = 1, .head_dim = 16}};
  EXPECT_EQ(identity.tokens_held, 64U);
}

TEST(SealedPage, EveryBitChangesTheValueOrIsRefused) {
  const PageBytes good = encoded(example());
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    PageBytes bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto decoded = decode_sealed_page(bytes);
    if (!decoded.ok()) continue;
    EXPECT_NE(*decoded, example()) << "bit " << bit;
    EXPECT_EQ(encoded(*decoded), bytes) << "bit " << bit;
  }
}

TEST(SealedPage, AnImpossibleFieldIsRefusedByName) {
  struct Case {
    std::size_t offset;
    std::size_t size;
    std::uint64_t value;
    const char* message;
  };
  const std::array<Case, 19> cases = {{
      {32, 4, 65'536, "layer"},
      {36, 4, 511, "first position"},
      {36, 4, 0x8000'0000, "first position"},
      {36, 4, 0xFFFF'FF00, "first position"},
      {40, 4, 0, "number of tokens"},
      {40, 4, 255, "number of tokens"},
      {40, 4, 8'192, "number of tokens"},
      {44, 4, 0, "number of tokens held"},
      {44, 4, 257, "number of tokens held"},
      {48, 4, 0, "number of kv heads"},
      {48, 4, 1'025, "number of kv heads"},
      {52, 4, 0, "head dimension"},
      {52, 4, 65, "head dimension"},
      {52, 4, 1'040, "head dimension"},
      {56, 1, 5, "KV type"},
      {56, 1, 255, "KV type"},
      {57, 1, 1, "unused bytes"},
      {60, 4, 1, "unused bytes"},
      {60, 4, 1U << 31, "unused bytes"},
  }};
  for (const Case& each : cases) {
    PageBytes bytes = encoded(example());
    for (std::size_t i = 0; i < each.size; ++i) {
      bytes[each.offset + i] = static_cast<std::byte>(each.value >> (8 * i));
    }
    const auto decoded = decode_sealed_page(bytes);
    ASSERT_FALSE(decoded.ok()) << each.message;
    EXPECT_NE(decoded.error().message.find(each.message), std::string::npos)
        << decoded.error().message;
  }
}

TEST(SealedPage, HeadsOfQ8AreMultiplesOf32Wide) {
  SealedPage page = example();
  PageBytes bytes = encoded(page);
  bytes[52] = std::byte{48};
  EXPECT_TRUE(decode_sealed_page(bytes).ok());
  bytes[56] = static_cast<std::byte>(KvType::q8);
  EXPECT_FALSE(decode_sealed_page(bytes).ok());
}

TEST(SealedPage, ACodecOfTheFutureIsRead) {
  PageBytes bytes = encoded(example());
  bytes[58] = std::byte{77};
  const auto decoded = decode_sealed_page(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(static_cast<int>(decoded->codec), 77);
}

TEST(SealedPage, TheFirstDifferenceOfAnIdentityIsNamed) {
  const PageIdentity wanted = example().identity;
  EXPECT_EQ(refusal(verify_identity(wanted, wanted)), "accepted");
  struct Case {
    std::function<void(PageIdentity&)> change;
    const char* message;
  };
  const std::array<Case, 10> cases = {{
      {[](PageIdentity& other) { other.model.high ^= 1; }, "another model"},
      {[](PageIdentity& other) { other.key.block.low ^= 1; }, "another block"},
      {[](PageIdentity& other) { other.key.block.high ^= 1; }, "another block"},
      {[](PageIdentity& other) { other.key.layer = 8; }, "another layer: 8 instead of 7"},
      {[](PageIdentity& other) { other.first_position = 256; }, "another first position"},
      {[](PageIdentity& other) { other.shape.tokens = 128; }, "another number of tokens"},
      {[](PageIdentity& other) { other.shape.kv_heads = 4; }, "another number of kv heads"},
      {[](PageIdentity& other) { other.shape.head_dim = 32; }, "another head dimension"},
      {[](PageIdentity& other) { other.shape.type = KvType::bf16; }, "bf16 instead of f16"},
      {[](PageIdentity& other) { other.tokens_held = 199; }, "another number of tokens held"},
  }};
  for (const Case& each : cases) {
    PageIdentity stored = wanted;
    each.change(stored);
    EXPECT_NE(refusal(verify_identity(stored, wanted)).find(each.message), std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
