#include "codec/sealed_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace headrace {
namespace {

using HeaderBytes = std::array<std::byte, sealed_page_header_bytes>;

constexpr std::size_t used_bytes = 112;
constexpr std::size_t checksum_at = 96;

// The worked example of docs/formats/page.md: a page of SmolLM2-135M.
std::vector<std::byte> example_payload() {
  std::vector<std::byte> payload(196'608);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i % 251);
  return payload;
}

SealedPageHeader example_header() {
  return {
      .identity = {.key = {.block = {.low = 0x0123'4567'89AB'CDEF, .high = 0xFEDC'BA98'7654'3210},
                           .layer = 7},
                   .model = {.low = 0x0011'2233'4455'6677, .high = 0x8899'AABB'CCDD'EEFF},
                   .first_position = 512,
                   .shape = {.tokens = 256, .kv_heads = 3, .head_dim = 64, .type = KvType::f16}},
      .codec = CodecId::raw,
      .payload_bytes = 196'608,
      .payload_checksum = hash_bytes(example_payload())};
}

HeaderBytes encoded(const SealedPageHeader& header) {
  HeaderBytes bytes;
  bytes.fill(std::byte{0xAA});
  encode_sealed_page_header(header, bytes);
  return bytes;
}

void put(HeaderBytes& bytes, std::size_t offset, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    bytes[offset + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

// Gives a header a right checksum again, so that a test reaches the checks behind it.
void reseal(HeaderBytes& bytes) {
  const Digest128 digest = hash_bytes(Bytes(bytes).first(checksum_at));
  put(bytes, checksum_at, digest.low, 8);
  put(bytes, checksum_at + 8, digest.high, 8);
}

std::string hex(Bytes bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

std::string refusal(const HeaderBytes& bytes) {
  const auto decoded = decode_sealed_page_header(bytes);
  if (decoded.ok()) return "accepted";
  EXPECT_EQ(decoded.error().code, ErrorCode::corrupt);
  return decoded.error().message;
}

TEST(SealedPage, HeaderKeepsItsGoldenBytes) {
  // If this fails the format has changed: give it a new version instead (docs/formats/page.md).
  const HeaderBytes bytes = encoded(example_header());
  EXPECT_EQ(hex(Bytes(bytes).first(used_bytes)),
            "4852504147450d0a0100000000100000"    // magic, version, header bytes
            "efcdab89674523011032547698badcfe"    // block
            "7766554433221100ffeeddccbbaa9988"    // model
            "07000000000200000001000003000000"    // layer, first position, tokens, kv heads
            "40000000010000000000030000000000"    // head dimension, type, 0, codec, payload bytes
            "4209d8999d95969517a55c8e33b8c7c0"    // payload checksum
            "b12e38ef4f6c85f87f5d825786d2d830");  // header checksum
  EXPECT_TRUE(std::all_of(bytes.begin() + used_bytes, bytes.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(SealedPage, HeaderSurvivesARoundTrip) {
  const SealedPageHeader header = example_header();
  const auto decoded = decode_sealed_page_header(encoded(header));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(decoded->identity, header.identity);
  EXPECT_EQ(decoded->codec, header.codec);
  EXPECT_EQ(decoded->payload_bytes, header.payload_bytes);
  EXPECT_EQ(decoded->payload_checksum, header.payload_checksum);
}

TEST(SealedPage, EveryFlippedBitOfTheUsedBytesIsDetected) {
  const HeaderBytes good = encoded(example_header());
  for (std::size_t bit = 0; bit < used_bytes * 8; ++bit) {
    HeaderBytes bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(refusal(bytes), "accepted") << "bit " << bit;
  }
}

TEST(SealedPage, EveryUnusedByteMustBeZero) {
  HeaderBytes bytes = encoded(example_header());
  for (std::size_t i = used_bytes; i < bytes.size(); ++i) {
    bytes[i] = std::byte{1} << (i % 8);
    EXPECT_NE(refusal(bytes), "accepted") << "byte " << i;
    bytes[i] = std::byte{0};
  }
  EXPECT_EQ(refusal(bytes), "accepted");
}

TEST(SealedPage, AHeaderCutShortAtAnyLengthIsRefused) {
  const HeaderBytes bytes = encoded(example_header());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    // A copy of its own, so that a sanitizer sees a read behind the end.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(length));
    const auto decoded = decode_sealed_page_header(cut);
    ASSERT_FALSE(decoded.ok()) << length;
    EXPECT_EQ(decoded.error().code, ErrorCode::corrupt);
  }
}

TEST(SealedPage, AnImpossibleFieldIsRefusedByNameEvenUnderARightChecksum) {
  struct Case {
    std::size_t offset;
    std::size_t size;
    std::uint64_t value;
    const char* message;
  };
  const std::array<Case, 24> cases = {{
      {0, 8, 0, "not a sealed page"},
      {8, 4, 0, "version 0"},
      {8, 4, 2, "version 2"},
      {12, 4, 4095, "another length"},
      {69, 1, 1, "unused bytes"},
      {48, 4, 65'536, "layer"},
      {52, 4, 511, "first position"},
      {52, 4, 0x8000'0000, "first position"},
      {52, 4, 0xFFFF'FF00, "first position"},
      {56, 4, 0, "number of tokens"},
      {56, 4, 255, "number of tokens"},
      {56, 4, 8'192, "number of tokens"},
      {60, 4, 0, "number of kv heads"},
      {60, 4, 0xFFFF'FFFF, "number of kv heads"},
      {64, 4, 0, "head dimension"},
      {64, 4, 63, "head dimension"},
      {64, 4, 0xFFFF'FFF0, "head dimension"},
      {68, 1, 5, "KV type"},
      {68, 1, 255, "KV type"},
      {70, 2, 1, "codec"},
      {70, 2, 0xFFFF, "codec"},
      {72, 8, 0, "payload length"},
      {72, 8, 196'607, "payload length"},
      {72, 8, 0xFFFF'FFFF'FFFF'FFFF, "payload length"},
  }};
  for (const Case& c : cases) {
    HeaderBytes bytes = encoded(example_header());
    put(bytes, c.offset, c.value, c.size);
    reseal(bytes);
    EXPECT_NE(refusal(bytes).find(c.message), std::string::npos)
        << "offset " << c.offset << " value " << c.value << ": " << refusal(bytes);
  }
}

TEST(SealedPage, RandomHeadersAreRefusedOrMeanExactlyTheirBytes) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  const HeaderBytes good = encoded(example_header());
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    HeaderBytes bytes = good;
    for (std::uint64_t changes = random() % 3 + 1; changes > 0; --changes) {
      bytes[random() % checksum_at] = static_cast<std::byte>(random());
    }
    reseal(bytes);
    const auto decoded = decode_sealed_page_header(bytes);
    if (!decoded.ok()) continue;
    ++accepted;
    ASSERT_EQ(encoded(*decoded), bytes);
  }
  EXPECT_GT(accepted, 1'000);  // the digests may be anything
}

TEST(SealedPage, TheRightPageVerifies) {
  const SealedPageHeader header = example_header();
  EXPECT_TRUE(
      verify_sealed_page(header, example_payload(), header.identity, header.payload_checksum).ok());
}

TEST(SealedPage, APageThatIsAnotherOneIsRefusedByTheFirstDifference) {
  struct Case {
    std::function<void(SealedPageHeader&)> change;
    const char* message;
  };
  // Each case also has the differences of those before it, so the order of the checks shows.
  const std::array<Case, 10> cases = {{
      {[](SealedPageHeader& h) { h.payload_checksum.low ^= 1; }, "checksum"},
      {[](SealedPageHeader& h) { h.payload_bytes += 16; }, "payload length"},
      {[](SealedPageHeader& h) { h.codec = CodecId{1}; }, "codec"},
      {[](SealedPageHeader& h) { h.identity.shape.type = KvType::f32; }, "KV type: f32"},
      {[](SealedPageHeader& h) { h.identity.shape.head_dim = 128; }, "head dimension: 128"},
      {[](SealedPageHeader& h) { h.identity.shape.kv_heads = 4; }, "kv heads: 4 instead of 3"},
      {[](SealedPageHeader& h) { h.identity.shape.tokens = 512; }, "tokens: 512"},
      {[](SealedPageHeader& h) { h.identity.first_position = 768; }, "first position: 768"},
      {[](SealedPageHeader& h) { h.identity.key.layer = 8; }, "layer: 8 instead of 7"},
      {[](SealedPageHeader& h) { h.identity.key.block.high ^= 1; }, "block: "},
  }};
  const SealedPageHeader wanted = example_header();
  const std::vector<std::byte> payload = example_payload();
  SealedPageHeader stored = wanted;
  const auto expect_refused = [&](const char* message) {
    const auto result =
        verify_sealed_page(stored, payload, wanted.identity, wanted.payload_checksum);
    ASSERT_FALSE(result.ok()) << message;
    EXPECT_EQ(result.error().code, ErrorCode::corrupt);
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  };
  for (const Case& c : cases) {
    c.change(stored);
    expect_refused(c.message);
  }
  stored.identity.model.low ^= 1;
  expect_refused("model: ");
}

TEST(SealedPage, TwoPagesWhoseHeadersAreSwappedAreBothRefused) {
  // Same identity but for the layer, as two neighbours in a page file are.
  SealedPageHeader first = example_header();
  std::vector<std::byte> first_payload = example_payload();
  SealedPageHeader second = first;
  std::vector<std::byte> second_payload = first_payload;
  std::ranges::reverse(second_payload);
  second.identity.key.layer = 8;
  second.payload_checksum = hash_bytes(second_payload);

  const auto refused = [](const SealedPageHeader& stored, Bytes payload,
                          const SealedPageHeader& wanted) {
    return !verify_sealed_page(stored, payload, wanted.identity, wanted.payload_checksum).ok();
  };
  EXPECT_TRUE(refused(second, second_payload, first));  // the whole slot of the other page
  EXPECT_TRUE(refused(first, first_payload, second));
  EXPECT_TRUE(refused(first, second_payload, first));  // only the payload of the other page
  EXPECT_TRUE(refused(second, first_payload, second));
  EXPECT_FALSE(refused(first, first_payload, first));
}

TEST(SealedPage, ADamagedOrShortPayloadIsRefused) {
  const SealedPageHeader header = example_header();
  std::vector<std::byte> payload = example_payload();
  const auto verify = [&](Bytes bytes) {
    return verify_sealed_page(header, bytes, header.identity, header.payload_checksum);
  };
  for (std::size_t byte = 0; byte < payload.size(); byte += 1 + payload.size() / 256) {
    payload[byte] ^= std::byte{1} << (byte % 8);
    EXPECT_FALSE(verify(payload).ok()) << byte;
    payload[byte] ^= std::byte{1} << (byte % 8);
  }
  EXPECT_TRUE(verify(payload).ok());
  const auto cut = verify(Bytes(payload).first(payload.size() - 1));
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.error().message.find("cut short: 196607 of 196608"), std::string::npos);
}

TEST(SealedPageDeathTest, SealingAnImpossiblePageIsABug) {
  SealedPageHeader header = example_header();
  header.payload_bytes -= 1;
  HeaderBytes bytes;
  EXPECT_DEATH(encode_sealed_page_header(header, bytes), "only a possible page is sealed");
}

}  // namespace
}  // namespace headrace
