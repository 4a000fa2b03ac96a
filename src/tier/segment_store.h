// SegmentStore: a log of records in segment files. Records are appended and never changed; the
// newest of a key is alive, an `erased` record kills older ones, and a segment is removed when
// nothing in it is alive. What is alive in a segment with much dead is copied forward.
//
//   place -> the caller writes -> commit (alive) or abandon (the place is dead)
//
// Invariants of a store that is kept for the next process:
//   1. A segment is removed only after all records that replaced or followed its own are durable.
//   2. A list of erased keys lives as long as a segment that may hold one of them.
//   3. A segment whose sync failed is written no more, and its records are copied elsewhere before
//      a later sync succeeds.
//
// Threads: what is marked "service" is called by one thread at a time and may wait for IO. All else
// may be called by any thread and never waits for IO.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "env/env.h"
#include "tier/record_index.h"
#include "tier/segment_format.h"
#include "tier/tier_directory.h"

namespace headrace {

struct SegmentStoreOptions {
  std::uint64_t limit_bytes = 0;    ///< of the directory; 0: no limit
  std::uint64_t segment_bytes = 0;  ///< records beyond it go to the next segment
  std::uint64_t record_bytes_max = 0;
  std::uint32_t index_capacity = 0;  ///< with some room for lists of erased keys
  std::uint64_t pages_max = 0;
  std::uint64_t records_max = 0;
  bool keep = false;
  bool direct = false;
  /// Whether a page that was found is of use; the others are foreign.
  std::function<bool(const SealedPage&)> is_ours;
};

/// Guarded by the store's mutex but for what is constant.
struct Segment {
  Segment(SegmentHeader with_header, std::unique_ptr<File> with_file)
      : header(with_header), file(std::move(with_file)) {}

  const SegmentHeader header;
  const std::unique_ptr<File> file;
  std::uint64_t used_bytes = segment_unit_bytes;
  std::uint64_t live_bytes = 0;     ///< of records in the index, and foreign ones
  std::uint64_t foreign_bytes = 0;  ///< of records for others
  std::uint64_t written_bytes = 0;  ///< in all, to see what came after a sync
  /// Of these; nullopt: what an earlier process wrote may never have been synced.
  std::optional<std::uint64_t> synced_written_bytes = 0;
  std::uint32_t in_flight = 0;  ///< records placed and neither committed nor abandoned
  std::uint64_t in_flight_bytes = 0;
  bool has_held_small = false;  ///< a record other than a page, dead or alive
  bool is_sealed = false;       ///< takes no more records
  bool is_distrusted = false;   ///< a sync of it failed
  bool is_stuck = false;        ///< could not be read or removed; not tried again

  std::uint64_t dead_bytes() const {
    return used_bytes - segment_unit_bytes - live_bytes - in_flight_bytes;
  }
};

/// A place in the log. The file stays open, whatever becomes of the segment.
struct Placement {
  std::shared_ptr<Segment> segment;
  RecordPlace place;
  File& file() const { return *segment->file; }
};

struct SegmentStoreStats {
  std::array<std::uint64_t, 4> records = {};  ///< alive, by kind
  std::uint64_t bytes = 0;                    ///< of the directory
  std::uint64_t bytes_peak = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t foreign_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t compacted_bytes = 0;
  std::uint64_t syncs = 0;
  std::uint64_t segments = 0;
  std::uint64_t recovered_pages = 0;
  std::uint64_t damaged = 0;  ///< records found damaged by compaction
};

class SegmentStore {
 public:
  /// With what the directory holds, if it is kept. Errors: io, out_of_budget.
  static Result<std::unique_ptr<SegmentStore>> open(Env& env, TierDirectory& directory,
                                                    const SegmentStoreOptions& options);
  /// Removes its files unless they are kept.
  ~SegmentStore();
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  std::uint64_t next_sequence();
  std::optional<Placement> find(const RecordKey& key) const;
  /// Whether there is one that this process wrote or has read as a whole.
  bool has_verified(const RecordKey& key) const;
  /// The record at this place has been read as a whole.
  void note_verified(const RecordKey& key, const RecordPlace& place);
  std::vector<Digest128> keys(RecordKind kind) const;
  std::uint64_t count(RecordKind kind) const;

  /// A place at the end of the log; nullopt: only place() can tell.
  std::optional<Placement> try_place(std::uint64_t bytes, std::uint64_t sequence);
  /// Service. Makes room and segments as needed. Errors: out_of_budget, io.
  Result<Placement> place(std::uint64_t bytes, std::uint64_t sequence);
  /// The record is written. It becomes the one of its key unless a newer one is. False: the index
  /// is full, and the record is dead.
  bool commit(const RecordKey& key, const Placement& placement);
  /// The record was not written, or may not have been.
  void abandon(const Placement& placement);
  /// The record was written, but its key has been erased meanwhile.
  void discard(const RecordKey& key, const Placement& placement);

  /// Whether there was one.
  bool erase(const RecordKey& key);
  /// Erases the record of this key if it is not newer than this.
  void erase_until(const RecordKey& key, std::uint64_t sequence);
  /// The record of this key could not be read, or does not verify. Another one of the key stays.
  void drop_unusable(const RecordKey& key, const RecordPlace& place, const Error& error);

  /// Service. Writes a small record and makes it the one of its key.
  Result<void> write_body(RecordKind kind, const Digest128& key, std::uint64_t sequence,
                          Bytes body);
  /// Any thread, but waits for IO. Errors: not_found, corrupt (dropped then), io.
  Result<std::vector<std::byte>> read_body(RecordKind kind, const Digest128& key);

  /// Whether enough is erased for a list of it.
  bool wants_flush() const;
  Result<void> flush_erased();  ///< service
  Result<void> sync();          ///< service; everything committed and erased before is durable
  /// Service. Copies about this many bytes out of segments with much dead, and removes segments
  /// without anything alive.
  void compact(std::uint64_t budget_bytes);
  /// Whether compact() would find anything to do. Any thread.
  bool wants_compaction() const;
  /// Whether everything could be read when this was opened.
  bool is_complete() const { return is_complete_; }
  /// From now on; makes the directory that small. Errors: those of place(), and then the old limit
  /// stays.
  Result<void> set_limit(std::uint64_t limit_bytes);

  void drop_cache();
  SegmentStoreStats stats() const;

  static std::uint64_t memory_bytes(const SegmentStoreOptions& options);

 private:
  using SegmentRef = std::shared_ptr<Segment>;

  SegmentStore(Env& env, TierDirectory& directory, const SegmentStoreOptions& options,
               AlignedBuffer buffer);

  // Opening and ending (segment_store_open.cc).
  void end();
  Result<void> recover();
  void recover_segment(const std::string& name, std::uint32_t number,
                       std::map<RecordKey, std::uint64_t>& erased);
  void recover_record(const SegmentRef& segment, const RecordHeader& header);
  void measure_foreign_file(const std::string& name);
  void drop_pages_beyond_limit();

  // With mutex_ held.
  std::uint64_t directory_bytes() const;
  bool fits(std::uint64_t bytes, std::uint64_t reserve) const;
  std::optional<Placement> take(std::uint64_t bytes, std::uint64_t sequence, std::uint64_t reserve);
  void end_flight(const Placement& placement);
  void seal_active();
  void forget(const RecordKey& key, const RecordPlace& place);
  bool set(const RecordKey& key, const RecordPlace& place);
  bool is_list_needed(const RecordKey& list, std::uint32_t own_segment) const;
  SegmentRef pick_victim(bool must_have_room) const;
  SegmentRef pick_worthwhile() const;
  SegmentRef find_dead() const;
  void drop_needless_lists();
  void note_peak();
  std::uint64_t put_reserve() const;
  std::uint64_t segment_reserve() const { return options_.segment_bytes; }

  // Service (segment_store_room.cc, segment_store_service.cc).
  Result<Placement> place_with_reserve(std::uint64_t bytes, std::uint64_t sequence,
                                       std::uint64_t reserve);
  Result<void> make_room(std::uint64_t bytes, std::uint64_t reserve);
  bool give_up_foreign();
  Result<void> flush_erased(std::uint64_t reserve);
  Result<void> write_list(const Placement& placement);
  Result<void> new_segment();
  Result<void> write_buffer(const RecordHeader& header, const Placement& placement);
  Result<void> copy_out(const SegmentRef& victim, std::uint64_t& budget_bytes);
  Result<void> copy_record(const RecordKey& key, const Placement& from);
  Result<void> empty_and_remove(const SegmentRef& victim);
  Result<void> remove_segment(const SegmentRef& segment);
  Result<void> sync_segments(const Segment* except);
  Result<void> evacuate_distrusted();

  Env& env_;
  TierDirectory& directory_;
  const SegmentStoreOptions options_;

  // Service only.
  AlignedBuffer buffer_;  ///< one record
  bool is_directory_synced_ = true;
  bool warned_of_direct_ = false;
  std::uint32_t compaction_cursor_ = 0;
  SegmentRef compaction_victim_;
  std::vector<ErasedEntry> last_list_;  ///< what the last list holds
  RecordKey last_list_key_;

  mutable std::mutex mutex_;
  std::uint64_t limit_bytes_ = options_.limit_bytes;
  // All below is guarded by mutex_.
  std::map<std::uint32_t, SegmentRef> segments_;
  SegmentRef active_;
  RecordIndex index_;
  std::vector<ErasedEntry> erased_;  ///< not yet in a list on disk
  std::uint32_t next_segment_ = 1;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t foreign_file_bytes_ = 0;
  std::uint32_t oldest_unread_segment_ = 0xFFFF'FFFF;
  bool is_complete_ = true;  // constant once open
  SegmentStoreStats stats_;
};

}  // namespace headrace
