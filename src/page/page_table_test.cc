#include "page/page_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace headrace {
namespace {

TEST(PageTable, IsEmptyAtFirst) {
  const PageTable table(3, 16, 4);
  EXPECT_EQ(table.blocks(), 0U);
  EXPECT_EQ(table.blocks_max(), 4U);
  EXPECT_EQ(table.layers(), 3U);
}

TEST(PageTable, MapsEveryPositionToItsBlockAndPlace) {
  const PageTable table(2, 48, 8);
  for (std::uint32_t position = 0; position < 48 * 8; ++position) {
    const std::uint32_t block = table.block_of(position);
    EXPECT_LE(table.first_position(block), position);
    EXPECT_LT(position - table.first_position(block), 48U);
  }
  EXPECT_EQ(table.block_of(47), 0U);
  EXPECT_EQ(table.block_of(48), 1U);
}

TEST(PageTable, ANewBlockIsOpenAndItsPagesAreNowhere) {
  PageTable table(3, 16, 4);
  table.add_block();
  EXPECT_EQ(table.blocks(), 1U);
  EXPECT_FALSE(table.block(0).sealed);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_FALSE(table.page(layer, 0).slot.has_value());
    EXPECT_FALSE(table.page(layer, 0).stored);
  }
}

TEST(PageTable, EveryLayerOfEveryBlockHasAnEntryOfItsOwn) {
  PageTable table(5, 16, 7);
  for (int i = 0; i < 7; ++i) table.add_block();
  std::set<const PageEntry*> entries;
  for (std::uint32_t block = 0; block < 7; ++block) {
    for (std::uint32_t layer = 0; layer < 5; ++layer) {
      entries.insert(&table.page(layer, block));
      table.page(layer, block).slot = SlotIndex{block * 100 + layer};
    }
  }
  EXPECT_EQ(entries.size(), 35U);
  for (std::uint32_t block = 0; block < 7; ++block) {
    for (std::uint32_t layer = 0; layer < 5; ++layer) {
      EXPECT_EQ(table.page(layer, block).slot, SlotIndex{block * 100 + layer});
    }
  }
}

TEST(PageTable, GrowthNeverMovesEntries) {
  PageTable table(3, 16, 100);
  table.add_block();
  const BlockEntry* block = &table.block(0);
  const PageEntry* page = &table.page(2, 0);
  while (table.blocks() < table.blocks_max()) {
    table.add_block();
    ASSERT_EQ(&table.block(0), block);
    ASSERT_EQ(&table.page(2, 0), page);
  }
}

TEST(PageTable, ABlockThatIsTakenAwayComesBackEmpty) {
  PageTable table(2, 16, 3);
  table.add_block();
  table.add_block();
  table.page(1, 0).slot = SlotIndex{4};
  table.page(1, 1).slot = SlotIndex{5};
  table.drop_last_block();
  EXPECT_EQ(table.blocks(), 1U);
  EXPECT_EQ(table.page(1, 0).slot, SlotIndex{4});
  table.add_block();
  EXPECT_FALSE(table.page(1, 1).slot.has_value());
}

TEST(PageTable, TheBytesThatItAnnouncesAreThoseThatItHolds) {
  const std::uint32_t layers = 30;
  const std::uint32_t blocks = 33;
  PageTable table(layers, 16, blocks);
  while (table.blocks() < blocks) table.add_block();
  const auto bytes_between = [](const auto& first, const auto& last) {
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&last + 1) -
                                      reinterpret_cast<std::uintptr_t>(&first));
  };
  EXPECT_EQ(bytes_between(table.block(0), table.block(blocks - 1)) +
                bytes_between(table.page(0, 0), table.page(layers - 1, blocks - 1)),
            PageTable::bytes(layers, blocks));
}

TEST(PageTableDeathTest, GrowingBeyondTheContextEndsTheProcess) {
  PageTable table(1, 16, 2);
  table.add_block();
  table.add_block();
  EXPECT_DEATH(table.add_block(), "a sequence grows beyond its context");
}

TEST(PageTableDeathTest, TakingASealedBlockAwayEndsTheProcess) {
  PageTable table(1, 16, 2);
  table.add_block();
  table.block(0).sealed = true;
  EXPECT_DEATH(table.drop_last_block(), "a sealed block is for ever");
}

}  // namespace
}  // namespace headrace
