#include "tier/record_index.h"

#include <algorithm>

#include "base/check.h"

namespace headrace {
namespace {

// Layers are below 65,536 and kinds below 256.
std::uint32_t pack(const RecordKey& key) {
  return static_cast<std::uint32_t>(key.kind) << 24 | key.layer;
}

}  // namespace

RecordKey RecordIndex::Entry::key() const {
  return {.kind = static_cast<RecordKind>(kind_and_layer >> 24),
          .layer = kind_and_layer & 0xFF'FFFF,
          .digest = digest};
}

RecordIndex::RecordIndex(std::uint32_t capacity)
    : entries_(capacity), buckets_(std::max(capacity, 1U), none) {
  for (std::uint32_t i = capacity; i > 0; --i) {
    entries_[i - 1].next = free_;
    free_ = i - 1;
  }
}

std::uint32_t& RecordIndex::bucket(const RecordKey& key) {
  const std::uint64_t mixed = (key.digest.low ^ pack(key)) * 0x9E37'79B9'7F4A'7C15;
  return buckets_[(mixed ^ (mixed >> 32)) % buckets_.size()];
}

std::uint32_t RecordIndex::find_entry(const RecordKey& key) const {
  const std::uint32_t packed = pack(key);
  std::uint32_t at = const_cast<RecordIndex*>(this)->bucket(key);
  while (at != none &&
         (entries_[at].digest != key.digest || entries_[at].kind_and_layer != packed)) {
    at = entries_[at].next;
  }
  return at;
}

std::optional<RecordPlace> RecordIndex::find(const RecordKey& key) const {
  const std::uint32_t at = find_entry(key);
  if (at == none) return std::nullopt;
  return entries_[at].place();
}

bool RecordIndex::set(const RecordKey& key, const RecordPlace& place) {
  HEADRACE_CHECK(place.units > 0, "a record takes room");
  std::uint32_t at = find_entry(key);
  if (at == none) {
    if (free_ == none) return false;
    at = free_;
    free_ = entries_[at].next;
    entries_[at].digest = key.digest;
    entries_[at].kind_and_layer = pack(key);
    std::uint32_t& head = bucket(key);
    entries_[at].next = head;
    head = at;
    ++size_;
  }
  Entry& entry = entries_[at];
  entry.sequence = place.sequence;
  entry.segment = place.segment;
  entry.unit = place.unit;
  entry.units = place.units;
  entry.is_verified = true;
  return true;
}

void RecordIndex::erase(const RecordKey& key) {
  const std::uint32_t at = find_entry(key);
  if (at == none) return;
  std::uint32_t* link = &bucket(key);
  while (*link != at) link = &entries_[*link].next;
  *link = entries_[at].next;
  entries_[at] = {};
  entries_[at].next = free_;
  free_ = at;
  --size_;
}

bool RecordIndex::is_verified(const RecordKey& key) const {
  const std::uint32_t at = find_entry(key);
  return at != none && entries_[at].is_verified;
}

void RecordIndex::set_verified(const RecordKey& key, bool verified) {
  const std::uint32_t at = find_entry(key);
  if (at != none) entries_[at].is_verified = verified;
}

std::optional<RecordKey> RecordIndex::next_in_segment(std::uint32_t segment,
                                                      std::uint32_t& cursor) const {
  for (std::uint32_t looked = 0; looked < entries_.size(); ++looked) {
    const Entry& entry = entries_[cursor % entries_.size()];
    cursor = static_cast<std::uint32_t>((cursor + 1) % entries_.size());
    if (entry.is_used() && entry.segment == segment) return entry.key();
  }
  return std::nullopt;
}

std::uint64_t RecordIndex::memory_bytes(std::uint32_t capacity) {
  return std::uint64_t{capacity} * (sizeof(Entry) + sizeof(std::uint32_t));
}

}  // namespace headrace
