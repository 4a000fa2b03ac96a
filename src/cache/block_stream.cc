#include <algorithm>

#include "base/check.h"
#include "cache/sequence_cache.h"

namespace headrace {

void BlockStream::start(PageStore& store, PageTable& table, FillQueue* fills, std::uint32_t layer,
                        std::uint32_t position, std::uint32_t end,
                        std::span<const std::uint8_t> wanted, std::span<const std::uint8_t> parts) {
  finish();
  wanted_ = wanted;
  parts_ = parts;
  store_ = &store;
  table_ = &table;
  fills_ = fills;
  layer_ = layer;
  end_ = end;
  block_ = store.options().first_block(layer, position);
  last_page_.reset();
  lost_.reset();
}

void BlockStream::finish() {
  for (const SlotIndex slot : streamed_) fills_->give_back(slot);
  streamed_.clear();
}

Result<std::span<const PageView>> BlockStream::next() {
  finish();
  batch_.clear();
  const std::uint32_t block_tokens = store_->options().shape.tokens;
  for (; table_->first_position(block_) < end_; ++block_) {
    if (!wanted_.empty() && wanted_[block_] == 0) continue;
    const std::uint32_t first = table_->first_position(block_);
    if (!parts_.empty() && parts_[block_] != 0) {
      batch_.push_back({first, block_tokens, nullptr});
      continue;
    }
    const PageEntry& page = table_->page(layer_, block_);
    if (fills_ != nullptr) {
      store_->reap();
      fills_->pump();
      // What is loaded ahead for later steps may have filled the tier's queue.
      while (batch_.empty() && !page.slot && fills_->front(layer_, block_) == nullptr) {
        store_->wait();
        fills_->pump();
      }
    }
    std::optional<SlotIndex> slot = page.slot;
    const Fill* fill = fills_ == nullptr ? nullptr : fills_->front(layer_, block_);
    if (!slot || fill != nullptr) {
      // Attention has something to do while the next page arrives.
      if (!batch_.empty() && (fill == nullptr || !fill->finished || !fill->outcome.ok())) break;
      HEADRACE_CHECK(fill != nullptr, "no slot to stream through");
      fills_->wait_front();
      if (!fill->outcome.ok()) {
        lost_ = PagePlace{layer_, block_};
        return Error{ErrorCode::page_lost, fill->outcome.error().message};
      }
      slot = fills_->take_front();
      if (store_->keep_streamed(table_->block(block_), layer_, *slot)) {
        fills_->leave();
      } else {
        streamed_.push_back(*slot);
      }
    }
    batch_.push_back({first, std::min(block_tokens, end_ - first), store_->pool().data(*slot)});
  }
  if (table_->first_position(block_) >= end_ && last_page_) {
    batch_.push_back(*last_page_);
    last_page_.reset();
  }
  return std::span<const PageView>(batch_);
}

}  // namespace headrace
