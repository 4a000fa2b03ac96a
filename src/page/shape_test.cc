#include "page/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TEST(PageShape, CountsTheBytesOfSmolLm2) {
  // 256 tokens x 3 kv heads x 64 values x (K and V) x 2 bytes.
  const PageShape shape{.tokens = 256, .kv_heads = 3, .head_dim = 64, .type = KvType::f16};
  EXPECT_EQ(shape.bytes(), 196'608U);
  EXPECT_EQ(shape.k_bytes(), 32'768U);
  EXPECT_EQ(shape.tiles(), 16U);
  EXPECT_EQ(shape.k_offset(0), 0U);
  EXPECT_EQ(shape.v_offset(0), 32'768U);
  EXPECT_EQ(shape.k_offset(2), 131'072U);
}

TEST(PageShape, AnF32PageIsTwiceAsLargeAsAnF16One) {
  const PageShape f16{.tokens = 32, .kv_heads = 2, .head_dim = 48, .type = KvType::f16};
  PageShape f32 = f16;
  f32.type = KvType::f32;
  EXPECT_EQ(f32.bytes(), 2 * f16.bytes());
}

TEST(PageShape, AScaleComesWithEveryI16KeyAndEvery32Q8Values) {
  PageShape shape{.tokens = 256, .kv_heads = 3, .head_dim = 64, .type = KvType::i16};
  EXPECT_EQ(shape.k_bytes(), 256U * (64 * 2 + 2));
  EXPECT_EQ(shape.v_bytes(), 256U * 64 * 2);
  shape.type = KvType::q8;
  EXPECT_EQ(shape.k_bytes(), 256U * (64 + 2 * 2));
  EXPECT_EQ(shape.v_bytes(), shape.k_bytes());
}

TEST(PageShape, BytesDoNotWrapWhenAPageExceedsFourGibibytes) {
  const PageShape shape{.tokens = 65'536, .kv_heads = 128, .head_dim = 256, .type = KvType::f32};
  EXPECT_EQ(shape.bytes(), std::uint64_t{65'536} * 128 * 256 * 2 * 4);
}

TEST(PageShape, KeysAndValuesOfAllHeadsFillAPageWithoutOverlap) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937 random(seed);
  const auto up_to = [&random](std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(1, most)(random);
  };
  for (int round = 0; round < 500; ++round) {
    const PageShape shape{.tokens = tile_tokens * up_to(256),
                          .kv_heads = up_to(128),
                          .head_dim = 32 * up_to(16),
                          .type = kv_types[up_to(std::size(kv_types)) - 1]};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
      ranges.emplace_back(shape.k_offset(head), shape.k_bytes());
      ranges.emplace_back(shape.v_offset(head), shape.v_bytes());
    }
    std::sort(ranges.begin(), ranges.end());
    std::uint64_t end = 0;
    for (const auto& [offset, bytes] : ranges) {
      ASSERT_EQ(offset, end) << "a gap or an overlap; kv heads " << shape.kv_heads;
      end = offset + bytes;
    }
    ASSERT_EQ(end, shape.bytes());
    // A half begins where its words are aligned.
    ASSERT_EQ(shape.k_bytes() % 4, 0U);
  }
}

std::vector<std::byte> cleared(const PageShape& shape, std::uint32_t first_token) {
  std::vector<std::byte> page(shape.bytes(), std::byte{0xFF});
  clear_tokens(shape, first_token, page);
  return page;
}

/// The bytes of a token are those that clearing from it on touches and clearing behind it does not.
TEST(ClearTokens, EveryTokenHasItsOwnBytesAndTogetherTheyAreThePage) {
  for (const KvType type : kv_types) {
    const PageShape shape{.tokens = 48, .kv_heads = 2, .head_dim = 32, .type = type};
    SCOPED_TRACE(to_string(type));
    std::vector<std::byte> before = cleared(shape, shape.tokens);
    EXPECT_EQ(before, std::vector<std::byte>(shape.bytes(), std::byte{0xFF}));
    for (std::uint32_t token = shape.tokens; token-- > 0;) {
      const std::vector<std::byte> after = cleared(shape, token);
      std::uint64_t changed = 0;
      for (std::size_t i = 0; i < after.size(); ++i) {
        ASSERT_TRUE(after[i] == before[i] || after[i] == std::byte{0}) << "byte " << i;
        changed += after[i] != before[i] ? 1 : 0;
      }
      EXPECT_EQ(changed, shape.bytes() / shape.tokens) << "token " << token;
      before = after;
    }
    EXPECT_EQ(before, std::vector<std::byte>(shape.bytes()));
  }
}

TEST(ClearTokens, TokensLieWhereTheLayoutSays) {
  const PageShape shape{.tokens = 32, .kv_heads = 2, .head_dim = 16, .type = KvType::f16};
  const std::vector<std::byte> page = cleared(shape, 19);
  const auto k = [&](std::uint32_t head, std::uint32_t token, std::uint32_t dim) {
    return page[shape.k_offset(head) + ((token / 16 * 16 + dim) * 16 + token % 16) * 2];
  };
  const auto v = [&](std::uint32_t head, std::uint32_t token, std::uint32_t dim) {
    return page[shape.v_offset(head) + (token * 16 + dim) * 2];
  };
  for (std::uint32_t head = 0; head < 2; ++head) {
    for (std::uint32_t token = 0; token < 32; ++token) {
      const std::byte expected = token < 19 ? std::byte{0xFF} : std::byte{0};
      EXPECT_EQ(k(head, token, 5), expected);
      EXPECT_EQ(v(head, token, 5), expected);
    }
  }
}

}  // namespace
}  // namespace headrace
