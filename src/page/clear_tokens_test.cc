#include "page/clear_tokens.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

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
