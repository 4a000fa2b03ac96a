#include "page/page_table.h"

#include "base/check.h"

namespace headrace {

void PageTable::add_block() {
  HEADRACE_CHECK(blocks() < blocks_max_, "a sequence grows beyond its context");
  blocks_.emplace_back();
  pages_.resize(pages_.size() + layers_);
}

void PageTable::drop_last_block() {
  HEADRACE_CHECK(blocks() > 0 && !blocks_.back().sealed, "a sealed block is for ever");
  blocks_.pop_back();
  pages_.resize(pages_.size() - layers_);
}

}  // namespace headrace
