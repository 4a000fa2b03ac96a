#include "codec/group_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

namespace headrace {
namespace {

PageShape shape_of(KvType type, std::uint32_t tokens = 64) {
  return {.tokens = tokens, .kv_heads = 3, .head_dim = 64, .type = type};
}

std::vector<std::byte> random_page(const PageShape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> page(shape.bytes());
  for (std::byte& byte : page) byte = static_cast<std::byte>(random());
  return page;
}

/// The token that each byte of a pool page belongs to, from the tables of docs/formats/page.md.
std::vector<std::uint32_t> owners(const PageShape& shape) {
  std::vector<std::uint32_t> owner(shape.bytes());
  const std::uint32_t dim = shape.head_dim;
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (std::uint64_t i = 0; i < shape.head_bytes(); ++i) {
      const bool is_key = i < shape.k_bytes();
      const std::uint64_t at = is_key ? i : i - shape.k_bytes();
      std::uint64_t token = 0;
      if (shape.type == KvType::q8) {
        const std::uint64_t tile = at / (34 * dim / 2), in_tile = at % (34 * dim / 2);
        const bool is_scale = in_tile >= 16 * dim;
        token = tile * 16 + (is_scale ? (in_tile - 16 * dim) / 2 % 16
                             : is_key ? in_tile / 4 % 16
                                      : in_tile / dim);
      } else if (shape.type == KvType::i16 && is_key && at >= shape.tokens * dim * 2) {
        token = (at - shape.tokens * dim * 2) / 2;
      } else {
        const std::uint64_t size = shape.type == KvType::f32 ? 4 : 2;
        const bool in_pairs = shape.type == KvType::bf16 || shape.type == KvType::i16;
        const std::uint64_t element = at / size;
        if (is_key && shape.type == KvType::i16) {
          token = element / (dim * 4) * 4 + element / 8 % 4;
        } else if (is_key) {
          const std::uint64_t pair = in_pairs ? 2 : 1;
          token = element / (dim * 16) * 16 + element / pair % 16;
        } else {
          token = in_pairs ? element / (2 * dim) * 2 + element % 2 : element / dim;
        }
      }
      owner[shape.k_offset(head) + i] = static_cast<std::uint32_t>(token);
    }
  }
  return owner;
}

class GroupLayout : public testing::TestWithParam<KvType> {};

TEST_P(GroupLayout, AGroupHoldsTheBytesOfItsTokensAndNoOthers) {
  const PageShape shape = shape_of(GetParam());
  const std::vector<std::uint32_t> owner = owners(shape);
  for (std::uint32_t group = 0; group < shape.tokens / group_tokens; ++group) {
    std::vector<std::byte> page(shape.bytes());
    for (std::size_t i = 0; i < page.size(); ++i) {
      page[i] = owner[i] / group_tokens == group ? std::byte{1} : std::byte{0};
    }
    std::vector<std::byte> groups(shape.bytes());
    encode_groups(shape, shape.tokens, page, groups);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      ASSERT_EQ(groups[i] == std::byte{1}, i / group_bytes(shape) == group) << "byte " << i;
    }
  }
}

TEST_P(GroupLayout, APageComesBackWhateverItHolds) {
  const PageShape shape = shape_of(GetParam());
  const std::vector<std::uint32_t> owner = owners(shape);
  for (std::uint32_t held = 1; held <= shape.tokens; ++held) {
    std::vector<std::byte> page = random_page(shape, held);
    for (std::size_t i = 0; i < page.size(); ++i) {
      if (owner[i] >= held) page[i] = std::byte{0};
    }
    std::vector<std::byte> groups(shape.bytes());
    const std::uint64_t bytes = encode_groups(shape, held, page, groups);
    ASSERT_EQ(bytes, grouped_bytes(shape, held));
    groups.resize(bytes);
    std::vector<std::byte> back(shape.bytes(), std::byte{0xEE});
    decode_groups(shape, held, groups, back);
    ASSERT_EQ(back, page) << held << " tokens";
  }
}

TEST_P(GroupLayout, AGroupOfAHeadGoesToItsPlaceAlone) {
  const PageShape shape = shape_of(GetParam());
  const std::vector<std::uint32_t> owner = owners(shape);
  const std::vector<std::byte> page = random_page(shape, shape.tokens);
  std::vector<std::byte> groups(shape.bytes());
  encode_groups(shape, shape.tokens, page, groups);
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (std::uint32_t group = 0; group < shape.tokens / group_tokens; ++group) {
      std::vector<std::byte> part(shape.bytes(), std::byte{0xEE});
      decode_group(shape, head, group,
                   std::span(groups).subspan(group * group_bytes(shape), group_bytes(shape)),
                   part.data());
      for (std::size_t i = 0; i < part.size(); ++i) {
        const bool is_its = i / shape.head_bytes() == head && owner[i] / group_tokens == group;
        ASSERT_EQ(part[i], is_its ? page[i] : std::byte{0xEE}) << "byte " << i;
      }
    }
  }
}

TEST_P(GroupLayout, AGroupAloneHasTheBytesThatItHasAmongAll) {
  const PageShape shape = shape_of(GetParam());
  const std::vector<std::byte> page = random_page(shape, 5);
  std::vector<std::byte> groups(shape.bytes());
  encode_groups(shape, shape.tokens, page, groups);
  std::vector<std::byte> alone(group_bytes(shape));
  for (std::uint32_t group = 0; group < group_count(shape.tokens); ++group) {
    encode_group(shape, group, page, alone);
    EXPECT_TRUE(
        std::ranges::equal(alone, std::span(groups).subspan(group * alone.size(), alone.size())))
        << group;
  }
}

TEST_P(GroupLayout, EveryGroupIsCheckedOnceBeforeItIsCopied) {
  const PageShape shape = shape_of(GetParam());
  const std::uint32_t held = shape.tokens - group_tokens;  // an odd number of groups
  const std::vector<std::byte> page = random_page(shape, held);
  std::vector<std::byte> groups(grouped_bytes(shape, held));
  encode_groups(shape, held, page, groups);
  std::vector<std::byte> back(shape.bytes());
  std::uint64_t checked = 0;
  const auto check = [&](std::uint32_t first, Bytes part) -> Result<void> {
    EXPECT_EQ(first * group_bytes(shape), checked);
    EXPECT_TRUE(std::ranges::equal(part, std::span(groups).subspan(checked, part.size())));
    checked += part.size();
    return {};
  };
  ASSERT_TRUE(decode_groups(shape, held, groups, back, check).ok());
  EXPECT_EQ(checked, groups.size());
  const auto refuse = [](std::uint32_t first, Bytes) -> Result<void> {
    return first == 0 ? Result<void>() : Error{ErrorCode::corrupt, "damaged"};
  };
  const auto refused = decode_groups(shape, held, groups, back, refuse);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "damaged");
}

TEST_P(GroupLayout, HeadsFollowEachOtherInAGroup) {
  const PageShape shape = shape_of(GetParam());
  std::vector<std::byte> page(shape.bytes());
  for (std::size_t i = 0; i < page.size(); ++i) {
    page[i] = static_cast<std::byte>(i / shape.head_bytes());
  }
  std::vector<std::byte> groups(shape.bytes());
  encode_groups(shape, shape.tokens, page, groups);
  const std::uint64_t head_bytes = group_bytes(shape) / shape.kv_heads;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ASSERT_EQ(groups[i], static_cast<std::byte>(i / head_bytes % shape.kv_heads)) << "byte " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GroupLayout, testing::ValuesIn(kv_types),
                         [](const auto& type) { return std::string(to_string(type.param)); });

// Figures, not a promise: --gtest_also_run_disabled_tests.
TEST(GroupLayoutSpeed, DISABLED_OfALargePage) {
  for (const KvType type : kv_types) {
    const PageShape shape{.tokens = 256, .kv_heads = 8, .head_dim = 128, .type = type};
    const std::vector<std::byte> page = random_page(shape, 1);
    std::vector<std::byte> groups(shape.bytes()), back(shape.bytes());
    const auto rate = [&](auto&& move) {
      double best = 0;
      for (int i = 0; i < 200; ++i) {
        const auto start = std::chrono::steady_clock::now();
        move();
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        best = std::max(best, static_cast<double>(shape.bytes()) / time.count() / 1e9);
      }
      return best;
    };
    const double out = rate([&] { encode_groups(shape, shape.tokens, page, groups); });
    const double in = rate([&] { decode_groups(shape, shape.tokens, groups, back); });
    std::printf("%-5s encode %.1f GB/s, decode %.1f GB/s\n", to_string(type), out, in);
  }
}

}  // namespace
}  // namespace headrace
