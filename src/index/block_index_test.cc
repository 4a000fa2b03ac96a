#include "index/block_index.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace headrace {
namespace {

constexpr std::uint32_t block_tokens = 4;

BlockIndexOptions small_index() {
  BlockIndexOptions options;
  options.layers = 2;
  options.tokens_per_block = block_tokens;
  options.blocks_max = 1'000;
  options.secret.fill(std::byte{7});
  return options;
}

using Text = std::vector<TokenId>;

/// A sealed block whose pages exist.
Block& put(BlockIndex& index, Block& parent, const Text& tokens) {
  Block& block =
      index.add(parent, index.is_root(parent) ? 0 : parent.first_position + block_tokens);
  index.seal(block, index.key_of(parent, tokens), tokens);
  for (PageEntry& page : block.pages) page.stored = 1;
  return block;
}

TEST(BlockIndex, FindsABlockByTheTextThatLeadsToIt) {
  BlockIndex index(small_index());
  Block& root = index.root("");
  EXPECT_EQ(index.find(root, Text{1, 2, 3, 4}), nullptr);
  Block& first = put(index, root, {1, 2, 3, 4});
  Block& second = put(index, first, {5, 6, 7, 8});
  Block& same_tokens_elsewhere = put(index, root, {5, 6, 7, 8});
  EXPECT_EQ(index.find(root, Text{1, 2, 3, 4}), &first);
  EXPECT_EQ(index.find(first, Text{5, 6, 7, 8}), &second);
  EXPECT_EQ(index.find(root, Text{5, 6, 7, 8}), &same_tokens_elsewhere);
  EXPECT_EQ(index.find(first, Text{5, 6, 7, 9}), nullptr);
  EXPECT_EQ(index.find(second, Text{1, 2, 3, 4}), nullptr);
  EXPECT_EQ(index.find(second.key), &second);
}

TEST(BlockIndex, TenantsDoNotSeeEachOther) {
  BlockIndex index(small_index());
  put(index, index.root("anna"), {1, 2, 3, 4});
  EXPECT_NE(index.find(index.root("anna"), Text{1, 2, 3, 4}), nullptr);
  EXPECT_EQ(index.find(index.root("ben"), Text{1, 2, 3, 4}), nullptr);
  EXPECT_EQ(index.find(index.root(""), Text{1, 2, 3, 4}), nullptr);
  EXPECT_EQ(index.longest_match(index.root("ben"), Text{1, 2, 3, 4}).block, nullptr);
}

TEST(BlockIndex, AKeyDependsOnSecretSettingsTenantParentAndEveryToken) {
  const auto key = [](const BlockIndexOptions& options, std::string_view tenant, const Text& first,
                      const Text& second) {
    BlockIndex index(options);
    return index.key_of(put(index, index.root(tenant), first), second);
  };
  const Text first = {1, 23, 4, 5};
  const Text second = {6, 7, 8, 9};
  std::set<std::pair<std::uint64_t, std::uint64_t>> keys;
  const auto note = [&keys](const Digest128& digest) {
    EXPECT_TRUE(keys.emplace(digest.low, digest.high).second) << "two texts share a key";
  };
  note(key(small_index(), "", first, second));
  note(key(small_index(), "a", first, second));
  note(key(small_index(), "", {12, 3, 4, 5}, second));
  note(key(small_index(), "", first, {6, 7, 8, 10}));
  note(key(small_index(), "", first, {6, 7, 8}));
  BlockIndexOptions other = small_index();
  other.secret[31] = std::byte{8};
  note(key(other, "", first, second));
  other = small_index();
  other.settings = {.low = 1, .high = 0};
  note(key(other, "", first, second));
  BlockIndex index(small_index());
  note(index.key_of(index.root(""), second));
}

TEST(BlockIndex, NoTwoOfManyTextsShareAKey) {
  BlockIndex index(small_index());
  std::set<std::pair<std::uint64_t, std::uint64_t>> keys;
  const Block& root = index.root("");
  for (TokenId a = 0; a < 320; ++a) {
    for (TokenId b = 0; b < 320; ++b) {
      const Digest128 key = index.key_of(root, Text{a, b});
      ASSERT_TRUE(keys.emplace(key.low, key.high).second) << a << ", " << b;
    }
  }
}

TEST(BlockIndex, TheLongestMatchMayEndInsideABlock) {
  BlockIndex index(small_index());
  Block& root = index.root("");
  Block& full = put(index, root, {1, 2, 3, 4});
  Block& tail = put(index, root, {1, 9});
  auto match = index.longest_match(root, Text{1, 2, 3, 5, 6});
  EXPECT_EQ(match.block, &full);
  EXPECT_EQ(match.tokens, 3U);
  match = index.longest_match(root, Text{1, 9, 9});
  EXPECT_EQ(match.block, &tail);
  EXPECT_EQ(match.tokens, 2U);
  match = index.longest_match(root, Text{2});
  EXPECT_EQ(match.block, nullptr);
  EXPECT_EQ(index.find(root, Text{1, 9}), &tail) << "a tail is found by its whole text too";
}

TEST(BlockIndex, ABlockThatLacksAPageIsNoMatch) {
  BlockIndex index(small_index());
  Block& root = index.root("");
  Block& block = put(index, root, {1, 2, 3, 4});
  block.pages[1].stored = 0;
  EXPECT_EQ(index.longest_match(root, Text{1, 2, 3}).block, nullptr);
}

TEST(BlockIndex, WhatIsRemovedIsNotFoundAndMakesPlace) {
  BlockIndexOptions options = small_index();
  options.blocks_max = 2;
  BlockIndex index(options);
  Block& first = put(index, index.root(""), {1, 2, 3, 4});
  Block& second = put(index, first, {5, 6, 7, 8});
  EXPECT_TRUE(index.full());
  index.remove(second);
  EXPECT_FALSE(index.full());
  EXPECT_EQ(index.find(first, Text{5, 6, 7, 8}), nullptr);
  EXPECT_TRUE(first.children.empty());
}

TEST(BlockIndex, VisitsParentsBeforeChildren) {
  BlockIndex index(small_index());
  Block& first = put(index, index.root(""), {1, 2, 3, 4});
  put(index, put(index, first, {5, 6, 7, 8}), {9});
  put(index, first, {6, 6, 6, 6});
  put(index, index.root("b"), {1, 2, 3, 4});
  std::set<const Block*> seen;
  index.for_each_sealed([&](Block& block) {
    EXPECT_TRUE(index.is_root(*block.parent) || seen.contains(block.parent));
    EXPECT_TRUE(seen.insert(&block).second);
  });
  EXPECT_EQ(seen.size(), 5U);
}

// Against a plain map from text to block.
TEST(BlockIndex, AgreesWithAMapOverRandomTexts) {
  const unsigned seed = std::random_device{}();
  std::printf("seed=%u\n", seed);
  std::mt19937_64 random(seed);
  BlockIndexOptions options = small_index();
  options.blocks_max = 10'000;
  BlockIndex index(options);
  std::map<Text, Block*> expected;  // by the whole text
  const auto random_block = [&] {
    Text tokens(block_tokens);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 2);
    return tokens;
  };
  for (int round = 0; round < 5'000; ++round) {
    Block* parent = &index.root("");
    Text text;
    for (std::uint64_t depth = random() % 4;; --depth) {
      const Text tokens = random_block();
      text.insert(text.end(), tokens.begin(), tokens.end());
      Block* found = index.find(*parent, tokens);
      const auto known = expected.find(text);
      ASSERT_EQ(found, known == expected.end() ? nullptr : known->second);
      if (found == nullptr) {
        if (random() % 2 == 0) break;
        found = &put(index, *parent, tokens);
        expected[text] = found;
      } else if (found->children.empty() && random() % 4 == 0) {
        index.remove(*found);
        expected.erase(text);
        break;
      }
      parent = found;
      if (depth == 0) break;
    }
  }
  EXPECT_EQ(index.blocks(), expected.size());
}

TEST(BlockIndexDeathTest, ABlockWithChildrenOrUsersDoesNotEnd) {
  BlockIndex index(small_index());
  Block& first = put(index, index.root(""), {1, 2, 3, 4});
  put(index, first, {5, 6, 7, 8});
  EXPECT_DEATH(index.remove(first), "a block that is used ends");
}

}  // namespace
}  // namespace headrace
