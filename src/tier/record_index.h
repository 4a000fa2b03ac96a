// RecordIndex: where each record that is alive lies. Pure bookkeeping, no IO, all memory allocated
// when it is made, 52 bytes a record. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tier/segment_format.h"

namespace headrace {

/// A range of a segment, in units of segment_unit_bytes.
struct RecordPlace {
  std::uint32_t segment = 0;
  std::uint32_t unit = 0;
  std::uint32_t units = 0;
  std::uint64_t sequence = 0;
  bool operator==(const RecordPlace&) const = default;
  std::uint64_t offset() const { return std::uint64_t{unit} * segment_unit_bytes; }
  std::uint64_t bytes() const { return std::uint64_t{units} * segment_unit_bytes; }
};

class RecordIndex {
 public:
  explicit RecordIndex(std::uint32_t capacity);

  std::optional<RecordPlace> find(const RecordKey& key) const;
  /// Adds a record or moves it. False: full.
  bool set(const RecordKey& key, const RecordPlace& place);
  void erase(const RecordKey& key);

  /// A record that was found rather than written has not been read as a whole yet.
  bool is_verified(const RecordKey& key) const;
  void set_verified(const RecordKey& key, bool verified);

  std::uint32_t size() const { return size_; }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(entries_.size()); }

  /// Calls visit(key, place) for every record, in no order. It must not change the index.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.is_used()) visit(entry.key(), entry.place());
    }
  }
  /// A record in this segment, if there is one, looking from `cursor` on, which is moved.
  std::optional<RecordKey> next_in_segment(std::uint32_t segment, std::uint32_t& cursor) const;

  static std::uint64_t memory_bytes(std::uint32_t capacity);

 private:
  struct Entry {
    Digest128 digest;
    std::uint64_t sequence = 0;
    std::uint32_t kind_and_layer = 0;
    std::uint32_t segment = 0;
    std::uint32_t unit = 0;
    std::uint32_t units = 0;  ///< 0: not used
    std::uint32_t next = none;
    bool is_verified = true;

    bool is_used() const { return units != 0; }
    RecordKey key() const;
    RecordPlace place() const {
      return {.segment = segment, .unit = unit, .units = units, .sequence = sequence};
    }
  };
  static constexpr std::uint32_t none = 0xFFFF'FFFF;

  std::uint32_t& bucket(const RecordKey& key);
  std::uint32_t find_entry(const RecordKey& key) const;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> buckets_;  // heads of chains
  std::uint32_t free_ = none;           // chain of entries that are not used
  std::uint32_t size_ = 0;
};

}  // namespace headrace
