// The part of SequenceCache that serves where only the text is kept of pages that leave.
#include "cache/sequence_cache.h"

namespace headrace {

void SequenceCache::pin_blocks() {
  for (std::uint32_t i = 0; i < table_.blocks(); ++i) {
    store_.pin(table_.block(i));
    pinned_.push_back(&table_.block(i));
  }
}

void SequenceCache::unpin_blocks() {
  for (Block* const block : pinned_) store_.unpin(*block);
  pinned_.clear();
}

std::uint32_t SequenceCache::resident_pages() const {
  std::uint32_t pages = 0;
  for (std::uint32_t i = 0; i < table_.blocks(); ++i) {
    const Block& block = table_.block(i);
    if (!block.sealed) continue;
    for (const PageEntry& page : block.pages) pages += page.slot ? 1 : 0;
  }
  return pages;
}

std::optional<SequenceCache::Missing> SequenceCache::missing_blocks() const {
  Missing missing;
  for (std::uint32_t i = 0; i < table_.blocks(); ++i) {
    if (!table_.block(i).sealed) continue;
    for (std::uint32_t layer = 0; layer < table_.layers(); ++layer) {
      if (i < kept_from_[layer] || table_.page(layer, i).exists()) continue;
      if (missing.pages++ == 0) missing.first = i;
      missing.last = i;
    }
  }
  return missing.pages > 0 ? std::optional(missing) : std::nullopt;
}

void SequenceCache::take_first_blocks(SequenceCache& other, std::uint32_t count) {
  std::vector<Block*> blocks;
  blocks.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) blocks.push_back(&other.table_.block(i));
  take_blocks(blocks);
}

}  // namespace headrace
