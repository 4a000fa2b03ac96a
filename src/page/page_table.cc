#include "page/page_table.h"

#include "base/check.h"

namespace headrace {

void PageTable::add_block(Block& block) {
  HEADRACE_CHECK(blocks() < blocks_max_, "a sequence grows beyond its context");
  HEADRACE_CHECK(block.first_position == first_position(blocks()), "a block out of order");
  blocks_.push_back(&block);
}

Block& PageTable::drop_last_block() {
  HEADRACE_CHECK(blocks() > 0 && !blocks_.back()->sealed, "a sealed block is for ever");
  Block& block = *blocks_.back();
  blocks_.pop_back();
  return block;
}

}  // namespace headrace
