// SlotMap: which page lies in which slot of a page file, who shares it and who is using it. Pure
// bookkeeping, no IO.
//
// Lifecycle of a slot:
//   1. free: the lowest free slot is taken by insert_pinned(), so that the file stays short.
//   2. listed: find() knows the key; it has at least one share.
//   3. unlisted, when the last share is given up or the page is dropped: find() does not know it
//      any more and the key may get another slot, but IO in flight still pins this one.
//   4. free again, when nothing pins it.
//
// All memory is allocated when it is made. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "codec/sealed_page.h"

namespace headrace {

/// Number of a slot in the page file.
using FileSlot = std::uint32_t;

class SlotMap {
 public:
  explicit SlotMap(std::uint32_t slots);

  /// The slot of a listed key.
  std::optional<FileSlot> find(const PageKey& key) const;

  /// Takes the lowest free slot for `key`, which must not be listed, with one share and one pin.
  /// nullopt: all slots are taken.
  std::optional<FileSlot> insert_pinned(const PageKey& key);

  void share(FileSlot slot);    ///< one more share of a listed page
  void unshare(FileSlot slot);  ///< one share less of a listed page; the last one unlists it
  void drop(FileSlot slot);     ///< unlists a page whatever its shares, if it is listed
  void pin(FileSlot slot);      ///< keeps the slot of a listed page from being reused
  void unpin(FileSlot slot);

  std::uint32_t slots() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t pages() const { return pages_; }                  ///< listed ones
  std::uint32_t slots_touched() const { return slots_touched_; }  ///< 1 + the highest ever taken

  static std::uint64_t memory_bytes(std::uint32_t slots);

 private:
  struct Slot {
    PageKey key;
    FileSlot next = no_slot;   ///< in the chain of its bucket, while listed
    std::uint32_t shares = 0;  ///< listed while > 0
    std::uint32_t pins = 0;
  };
  static constexpr FileSlot no_slot = 0xFFFF'FFFF;

  std::size_t bucket(const PageKey& key) const;
  void unlist(FileSlot slot);
  void free_if_unused(FileSlot slot);

  std::vector<Slot> slots_;
  std::vector<FileSlot> buckets_;         // heads of chains
  std::vector<std::uint64_t> free_bits_;  // bit set: the slot is free
  std::size_t first_free_word_ = 0;       // words before it have no free slot
  std::uint32_t pages_ = 0;
  std::uint32_t slots_touched_ = 0;
};

}  // namespace headrace
