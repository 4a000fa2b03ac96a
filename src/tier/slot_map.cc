#include "tier/slot_map.h"

#include <bit>

#include "base/check.h"

namespace headrace {
namespace {

constexpr std::uint32_t bits_per_word = 64;

std::size_t bucket_count(std::uint32_t slots) { return std::bit_ceil(std::size_t{slots} + 1); }

std::size_t word_count(std::uint32_t slots) {
  return (std::size_t{slots} + bits_per_word - 1) / bits_per_word;
}

}  // namespace

SlotMap::SlotMap(std::uint32_t slots)
    : slots_(slots), buckets_(bucket_count(slots), no_slot), free_bits_(word_count(slots), 0) {
  for (FileSlot slot = 0; slot < slots; ++slot) {
    free_bits_[slot / bits_per_word] |= std::uint64_t{1} << (slot % bits_per_word);
  }
}

std::uint64_t SlotMap::memory_bytes(std::uint32_t slots) {
  return slots * sizeof(Slot) + bucket_count(slots) * sizeof(FileSlot) +
         word_count(slots) * sizeof(std::uint64_t);
}

std::size_t SlotMap::bucket(const PageKey& key) const {
  // A block's digest is a hash already; the layers of a block are spread by an odd multiplier.
  const std::uint64_t mixed = key.block.low ^ (key.layer * 0x9E37'79B9'7F4A'7C15U);
  return static_cast<std::size_t>(mixed ^ (mixed >> 32)) & (buckets_.size() - 1);
}

std::optional<FileSlot> SlotMap::find(const PageKey& key) const {
  for (FileSlot slot = buckets_[bucket(key)]; slot != no_slot; slot = slots_[slot].next) {
    if (slots_[slot].key == key) return slot;
  }
  return std::nullopt;
}

std::optional<FileSlot> SlotMap::insert_pinned(const PageKey& key) {
  HEADRACE_CHECK(!find(key), "a key has one slot");
  while (first_free_word_ < free_bits_.size() && free_bits_[first_free_word_] == 0) {
    ++first_free_word_;
  }
  if (first_free_word_ == free_bits_.size()) return std::nullopt;
  std::uint64_t& word = free_bits_[first_free_word_];
  const auto slot = static_cast<FileSlot>(first_free_word_ * bits_per_word +
                                          static_cast<std::size_t>(std::countr_zero(word)));
  word &= word - 1;  // clears the lowest set bit

  FileSlot& head = buckets_[bucket(key)];
  slots_[slot] = {.key = key, .next = head, .shares = 1, .pins = 1};
  head = slot;
  ++pages_;
  if (slot >= slots_touched_) slots_touched_ = slot + 1;
  return slot;
}

void SlotMap::share(FileSlot slot) {
  HEADRACE_CHECK(slots_[slot].shares > 0, "only a listed page is shared");
  ++slots_[slot].shares;
}

void SlotMap::unshare(FileSlot slot) {
  HEADRACE_CHECK(slots_[slot].shares > 0, "only a listed page has shares to give up");
  if (--slots_[slot].shares > 0) return;
  unlist(slot);
  free_if_unused(slot);
}

void SlotMap::drop(FileSlot slot) {
  if (slots_[slot].shares == 0) return;
  slots_[slot].shares = 0;
  unlist(slot);
  free_if_unused(slot);
}

void SlotMap::pin(FileSlot slot) {
  HEADRACE_CHECK(slots_[slot].shares > 0, "only a listed page is pinned");
  ++slots_[slot].pins;
}

void SlotMap::unpin(FileSlot slot) {
  HEADRACE_CHECK(slots_[slot].pins > 0, "pins and unpins match");
  --slots_[slot].pins;
  free_if_unused(slot);
}

void SlotMap::unlist(FileSlot slot) {
  FileSlot* link = &buckets_[bucket(slots_[slot].key)];
  while (*link != slot) link = &slots_[*link].next;
  *link = slots_[slot].next;
  --pages_;
}

void SlotMap::free_if_unused(FileSlot slot) {
  if (slots_[slot].shares > 0 || slots_[slot].pins > 0) return;
  const std::size_t word = slot / bits_per_word;
  free_bits_[word] |= std::uint64_t{1} << (slot % bits_per_word);
  if (word < first_free_word_) first_free_word_ = word;
}

}  // namespace headrace
