#include "page/page_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>

namespace headrace {
namespace {

/// Blocks to put into a table.
class PageTableTest : public testing::Test {
 protected:
  Block& new_block(std::uint32_t layers, std::uint32_t first_position, bool sealed = false) {
    Block& block = blocks_.emplace_back();
    block.pages.resize(layers);
    block.first_position = first_position;
    block.sealed = sealed;
    return block;
  }

 private:
  std::deque<Block> blocks_;
};

TEST_F(PageTableTest, IsEmptyAtFirst) {
  const PageTable table(3, 16, 4);
  EXPECT_EQ(table.blocks(), 0U);
  EXPECT_EQ(table.blocks_max(), 4U);
  EXPECT_EQ(table.layers(), 3U);
}

TEST_F(PageTableTest, MapsEveryPositionToItsBlockAndPlace) {
  const PageTable table(2, 48, 8);
  for (std::uint32_t position = 0; position < 48 * 8; ++position) {
    const std::uint32_t block = table.block_of(position);
    EXPECT_LE(table.first_position(block), position);
    EXPECT_LT(position - table.first_position(block), 48U);
  }
  EXPECT_EQ(table.block_of(47), 0U);
  EXPECT_EQ(table.block_of(48), 1U);
}

TEST_F(PageTableTest, NamesThePagesOfItsBlocks) {
  PageTable table(3, 16, 4);
  Block& first = new_block(3, 0);
  Block& second = new_block(3, 16);
  table.add_block(first);
  table.add_block(second);
  EXPECT_EQ(table.blocks(), 2U);
  EXPECT_EQ(&table.block(1), &second);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(&table.page(layer, 0), &first.pages[layer]);
    EXPECT_FALSE(table.page(layer, 1).exists());
  }
}

TEST_F(PageTableTest, ASealedBlockWithTheSameTextCanTakeThePlaceOfOne) {
  PageTable table(3, 16, 4);
  Block& other = new_block(3, 0, true);
  table.add_block(new_block(3, 0));
  table.replace_block(0, other);
  EXPECT_EQ(&table.block(0), &other);
  EXPECT_EQ(table.blocks(), 1U);
}

TEST_F(PageTableTest, AnOpenBlockCanBeTakenAway) {
  PageTable table(3, 16, 4);
  table.add_block(new_block(3, 0, true));
  Block& open = new_block(3, 16);
  table.add_block(open);
  EXPECT_EQ(&table.drop_last_block(), &open);
  EXPECT_EQ(table.blocks(), 1U);
  table.add_block(new_block(3, 16));
  EXPECT_EQ(table.blocks(), 2U);
}

TEST_F(PageTableTest, StatesItsBytes) {
  EXPECT_EQ(PageTable::bytes(32), 32 * sizeof(void*));
  EXPECT_EQ(PageTable::bytes(0), 0U);
}

using PageTableDeathTest = PageTableTest;

TEST_F(PageTableDeathTest, ASealedBlockIsForEver) {
  PageTable table(1, 16, 4);
  EXPECT_DEATH(table.drop_last_block(), "a sealed block is for ever");
  table.add_block(new_block(1, 0, true));
  EXPECT_DEATH(table.drop_last_block(), "a sealed block is for ever");
}

TEST_F(PageTableDeathTest, GrowingBeyondTheContextOrOutOfOrderEndsTheProcess) {
  PageTable table(1, 16, 2);
  EXPECT_DEATH(table.add_block(new_block(1, 16)), "a block out of order");
  table.add_block(new_block(1, 0));
  table.add_block(new_block(1, 16));
  EXPECT_DEATH(table.add_block(new_block(1, 32)), "a sequence grows beyond its context");
}

}  // namespace
}  // namespace headrace
