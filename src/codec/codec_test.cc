#include "codec/codec.h"

#include <gtest/gtest.h>

#include <vector>

#include "codec/group_layout.h"

namespace headrace {
namespace {

TEST(RawCodec, GivesBackWhatItWasGivenAndTakesNoMoreThanThePage) {
  const PageShape shape{.tokens = 32, .kv_heads = 2, .head_dim = 32, .type = KvType::bf16};
  const PagePlan plan{.shape = shape, .tokens_held = 32};
  std::vector<std::byte> page(shape.bytes());
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 7);
  std::vector<std::byte> encoded(raw_codec().encoded_bytes_max(shape));
  const std::uint64_t bytes = raw_codec().encode(plan, page, encoded);
  EXPECT_EQ(bytes, shape.bytes());
  std::vector<std::byte> back(shape.bytes());
  ASSERT_TRUE(raw_codec().decode(plan, encoded, back).ok());
  EXPECT_EQ(back, page);
  EXPECT_TRUE(raw_codec().is_lossless());
}

TEST(RawCodec, AnEncodedPageOfAnotherLengthIsRefused) {
  const PageShape shape{.tokens = 32, .kv_heads = 2, .head_dim = 32, .type = KvType::f16};
  const PagePlan plan{.shape = shape, .tokens_held = 9};
  std::vector<std::byte> page(shape.bytes());
  const std::vector<std::byte> encoded(grouped_bytes(shape, 9) - 1);
  const auto decoded = raw_codec().decode(plan, encoded, page);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::corrupt);
}

TEST(Codecs, AreFoundByNumber) {
  EXPECT_EQ(find_codec(CodecId::raw), &raw_codec());
  EXPECT_EQ(find_codec(static_cast<CodecId>(60'000)), nullptr);
}

}  // namespace
}  // namespace headrace
