// What the service thread of a SegmentStore does: small records, lists of erased keys, syncs,
// compaction.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "tier/segment_store.h"

namespace headrace {
namespace {

void warn(const Error& error) { log_message(LogLevel::warn, "kv disk: " + error.message); }

}  // namespace

Result<void> SegmentStore::write_buffer(const RecordHeader& header, const Placement& placement) {
  const MutableBytes record = buffer_.span().first(placement.place.bytes());
  std::ranges::fill(record.subspan(segment_unit_bytes + header.payload_bytes), std::byte{0});
  encode_record_header(header, placement.segment->header.identity,
                       record.first(segment_unit_bytes));
  const Bytes part = record;
  return placement.file().write_at(placement.place.offset(), std::span(&part, 1));
}

Result<void> SegmentStore::write_body(RecordKind kind, const Digest128& key, std::uint64_t sequence,
                                      Bytes body) {
  RecordHeader header{.kind = kind,
                      .sequence = sequence,
                      .payload_bytes = body.size(),
                      .page = {},
                      .digest = key,
                      .checked_bytes = body.size()};
  HEADRACE_TRY_ASSIGN(const Placement placement, place(header.record_bytes(), sequence));
  header.segment = placement.place.segment;
  header.offset = placement.place.offset();
  std::ranges::copy(body, buffer_.data() + segment_unit_bytes);
  set_checksums(header, body);
  if (auto written = write_buffer(header, placement); !written.ok()) {
    abandon(placement);
    return written;
  }
  if (commit(header.key(), placement)) return {};
  return Error{ErrorCode::out_of_budget, "the index of the disk tier is full"};
}

Result<void> SegmentStore::flush_erased() { return flush_erased(segment_reserve()); }

Result<void> SegmentStore::flush_erased(std::uint64_t reserve) {
  for (;;) {
    SegmentRef oldest;
    {
      const std::lock_guard lock(mutex_);
      if (!options_.keep || erased_.empty()) return {};
      const bool is_full = index_.size() == index_.capacity() && reserve > 0;
      if (is_full && segments_.size() > 1) oldest = segments_.begin()->second;
    }
    // Lists are needed as long as old segments are there.
    if (oldest != nullptr && oldest->in_flight == 0) HEADRACE_TRY(empty_and_remove(oldest));

    const std::uint64_t sequence = next_sequence();
    HEADRACE_TRY_ASSIGN(const Placement placement,
                        place_with_reserve(list_bytes, sequence, reserve));
    HEADRACE_TRY(write_list(placement));
  }
}

// The last list is written again with more in it, so that all others are full.
Result<void> SegmentStore::write_list(const Placement& placement) {
  std::vector<ErasedEntry> entries;
  std::size_t added = 0;
  {
    const std::lock_guard lock(mutex_);
    if (last_list_.size() < erased_entries_max) entries = last_list_;
    added = std::min(erased_.size(), erased_entries_max - entries.size());
    entries.insert(entries.end(), erased_.begin(),
                   erased_.begin() + static_cast<std::ptrdiff_t>(added));
  }
  if (entries.empty()) {  // making room for it has written it
    abandon(placement);
    return {};
  }
  RecordHeader header{.kind = RecordKind::erased,
                      .segment = placement.place.segment,
                      .offset = placement.place.offset(),
                      .sequence = placement.place.sequence,
                      .payload_bytes = entries.size() * erased_entry_bytes,
                      .page = {},
                      .digest = {},
                      .covers = placement.place.segment,
                      .checked_bytes = entries.size() * erased_entry_bytes};
  const MutableBytes body = buffer_.span().subspan(segment_unit_bytes, header.payload_bytes);
  encode_erased(entries, body);
  set_checksums(header, body);
  if (auto written = write_buffer(header, placement); !written.ok()) {
    abandon(placement);
    return written;
  }
  if (!commit(header.key(), placement)) {
    return Error{ErrorCode::out_of_budget, "the index of the disk tier is full"};
  }
  const std::lock_guard lock(mutex_);
  erased_.erase(erased_.begin(), erased_.begin() + static_cast<std::ptrdiff_t>(added));
  if (!last_list_.empty() && last_list_.size() < erased_entries_max) {
    if (const auto place = index_.find(last_list_key_)) forget(last_list_key_, *place);
  }
  last_list_ = std::move(entries);
  last_list_key_ = header.key();
  return {};
}

Result<void> SegmentStore::sync() {
  HEADRACE_TRY(evacuate_distrusted());
  HEADRACE_TRY(flush_erased());
  HEADRACE_TRY(sync_segments(nullptr));
  // A later process would take what is in it, torn perhaps, for the originals of the copies.
  for (;;) {
    SegmentRef distrusted;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [number, segment] : segments_) {
        const bool is_empty = segment->live_bytes == 0 && segment->in_flight == 0;
        if (segment->is_distrusted && is_empty) distrusted = segment;
      }
    }
    if (distrusted == nullptr) break;
    HEADRACE_TRY(remove_segment(distrusted));
  }
  if (!is_directory_synced_) {
    HEADRACE_TRY(env_.sync_directory(directory_.path()));
    is_directory_synced_ = true;
  }
  return {};
}

Result<void> SegmentStore::sync_segments(const Segment* except) {
  std::vector<std::pair<SegmentRef, std::uint64_t>> dirty;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, segment] : segments_) {
      if (segment.get() == except) continue;
      if (segment->is_distrusted && segment->live_bytes > 0) {
        return Error{ErrorCode::io, "a sync of '" + segment_name(number) + "' failed before"};
      }
      const bool is_dirty = segment->written_bytes != segment->synced_written_bytes;
      if (is_dirty && !segment->is_distrusted) dirty.emplace_back(segment, segment->written_bytes);
    }
  }
  for (const auto& [segment, written_bytes] : dirty) {
    auto synced = segment->file->sync();
    const std::lock_guard lock(mutex_);
    if (!synced.ok()) {
      // The system may have thrown away what it could not write, and calls it clean from now on.
      segment->is_distrusted = segment->is_sealed = true;
      if (active_ == segment) active_.reset();
      return synced;
    }
    segment->synced_written_bytes = written_bytes;
    ++stats_.syncs;
  }
  return {};
}

Result<void> SegmentStore::evacuate_distrusted() {
  std::vector<SegmentRef> distrusted;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, segment] : segments_) {
      if (segment->is_distrusted && segment->live_bytes > 0) distrusted.push_back(segment);
    }
  }
  for (const SegmentRef& segment : distrusted) {
    std::uint64_t budget_bytes = UINT64_MAX;
    HEADRACE_TRY(copy_out(segment, budget_bytes));
  }
  return {};
}

/// A segment that is worth compacting, or null.
SegmentStore::SegmentRef SegmentStore::pick_worthwhile() const {
  SegmentRef victim = pick_victim(true);
  if (victim == nullptr || victim == active_) return nullptr;
  // While there is room, only what is mostly dead is worth the copying.
  const bool is_short_of_room = !fits(limit_bytes_ / 4, 0);
  const std::uint64_t worth_bytes = victim->used_bytes / (is_short_of_room ? 4 : 2);
  return victim->dead_bytes() < worth_bytes ? nullptr : victim;
}

bool SegmentStore::wants_compaction() const {
  const std::lock_guard lock(mutex_);
  return find_dead() != nullptr || pick_worthwhile() != nullptr;
}

void SegmentStore::compact(std::uint64_t budget_bytes) {
  for (;;) {
    SegmentRef dead;
    {
      const std::lock_guard lock(mutex_);
      dead = find_dead();
    }
    if (dead == nullptr) break;
    if (auto removed = remove_segment(dead); !removed.ok()) return warn(removed.error());
  }
  while (budget_bytes > 0) {
    {
      const std::lock_guard lock(mutex_);
      const bool is_gone =
          compaction_victim_ != nullptr && !segments_.contains(compaction_victim_->header.number);
      if (is_gone || (compaction_victim_ != nullptr && compaction_victim_->is_stuck)) {
        compaction_victim_.reset();
      }
      if (compaction_victim_ == nullptr) {
        compaction_victim_ = pick_worthwhile();
        if (compaction_victim_ == nullptr) return;
      }
    }
    const SegmentRef victim = compaction_victim_;
    auto copied = copy_out(victim, budget_bytes);
    if (copied.ok() && budget_bytes > 0) copied = empty_and_remove(victim);
    if (!copied.ok()) {
      compaction_victim_.reset();
      return warn(copied.error());
    }
  }
}

Result<void> SegmentStore::copy_out(const SegmentRef& victim, std::uint64_t& budget_bytes) {
  while (budget_bytes > 0) {
    std::optional<RecordKey> key;
    Placement from;
    {
      const std::lock_guard lock(mutex_);
      if (active_ == victim) seal_active();
      key = index_.next_in_segment(victim->header.number, compaction_cursor_);
      if (!key) return {};
      from = {victim, *index_.find(*key)};
      if (key->kind == RecordKind::erased && !is_list_needed(*key, from.place.segment)) {
        forget(*key, from.place);
        continue;
      }
    }
    HEADRACE_TRY(copy_record(*key, from));
    budget_bytes -= std::min(budget_bytes, from.place.bytes());
  }
  return {};
}

Result<void> SegmentStore::copy_record(const RecordKey& key, const Placement& from) {
  const MutableBytes record = buffer_.span().first(from.place.bytes());
  auto loaded = [&]() -> Result<RecordHeader> {
    HEADRACE_TRY(from.file().read_at(from.place.offset(), std::span(&record, 1)));
    HEADRACE_TRY_ASSIGN(const RecordHeader header,
                        decode_record_header(record.first(segment_unit_bytes), from.segment->header,
                                             from.place.offset()));
    if (header.key() != key || header.sequence != from.place.sequence ||
        header.record_bytes() != record.size()) {
      return Error{ErrorCode::corrupt, "the stored record is another one"};
    }
    HEADRACE_TRY(verify_payload(header, record.subspan(segment_unit_bytes, header.payload_bytes)));
    return header;
  }();
  if (!loaded.ok() && loaded.error().code == ErrorCode::corrupt) {
    drop_unusable(key, from.place, loaded.error());
    const std::lock_guard lock(mutex_);
    ++stats_.damaged;
    return {};
  }
  if (!loaded.ok()) {
    const std::lock_guard lock(mutex_);
    from.segment->is_stuck = true;
    return std::move(loaded).error();
  }
  RecordHeader header = *loaded;
  // A new segment's header needs the buffer, so the record waits in its place behind it.
  HEADRACE_TRY_ASSIGN(const Placement to,
                      place_with_reserve(from.place.bytes(), from.place.sequence, 0));
  header.segment = to.place.segment;
  header.offset = to.place.offset();
  if (auto written = write_buffer(header, to); !written.ok()) {
    abandon(to);
    return written;
  }
  const std::lock_guard lock(mutex_);
  end_flight(to);
  stats_.compacted_bytes += to.place.bytes();
  const auto now = index_.find(key);
  if (now && *now == from.place) {
    // The header vouches for the bytes of a copy. Only who asks for a page knows which one it is.
    const bool is_verified = index_.is_verified(key);
    set(key, to.place);
    index_.set_verified(key, is_verified);
  } else if (!now && options_.keep) {
    // Erased meanwhile: the list that says so may be older than this copy.
    erased_.push_back({.key = key, .sequence = from.place.sequence + 1});
  }
  return {};
}

Result<void> SegmentStore::empty_and_remove(const SegmentRef& victim) {
  std::uint64_t budget_bytes = UINT64_MAX;
  HEADRACE_TRY(copy_out(victim, budget_bytes));
  {
    const std::lock_guard lock(mutex_);
    if (active_ == victim) seal_active();
    if (victim->live_bytes > 0 || victim->in_flight > 0) return {};
  }
  return remove_segment(victim);
}

Result<void> SegmentStore::remove_segment(const SegmentRef& segment) {
  if (options_.keep) {
    // What died here may have been the newer version of something that is still on disk. (Of a
    // page all versions are the same.)
    bool must_flush = false;
    {
      const std::lock_guard lock(mutex_);
      must_flush =
          segment->has_held_small && std::ranges::any_of(erased_, [](const ErasedEntry& entry) {
            return entry.key.kind != RecordKind::page;
          });
    }
    if (must_flush) HEADRACE_TRY(flush_erased(0));
    HEADRACE_TRY(evacuate_distrusted());
    HEADRACE_TRY(sync_segments(segment.get()));
  }
  const std::uint32_t number = segment->header.number;
  if (auto removed = env_.remove_file(directory_.file_path(segment_name(number))); !removed.ok()) {
    const std::lock_guard lock(mutex_);
    segment->is_stuck = true;
    return removed;
  }
  if (options_.keep) {
    auto synced = env_.sync_directory(directory_.path());
    if (!synced.ok()) warn(synced.error());
    is_directory_synced_ = synced.ok() && is_directory_synced_;
  }
  const std::lock_guard lock(mutex_);
  segments_.erase(number);
  if (is_directory_synced_) drop_needless_lists();
  return {};
}

bool SegmentStore::is_list_needed(const RecordKey& list, std::uint32_t own_segment) const {
  const auto covers = static_cast<std::uint32_t>(list.digest.high);
  if (!is_directory_synced_ || oldest_unread_segment_ <= covers) return true;
  for (const auto& [number, segment] : segments_) {
    if (number != own_segment) return number <= covers;
  }
  return false;
}

void SegmentStore::drop_needless_lists() {
  std::vector<std::pair<RecordKey, RecordPlace>> needless;
  index_.for_each([&](const RecordKey& key, const RecordPlace& place) {
    const bool is_list = key.kind == RecordKind::erased;
    if (is_list && !is_list_needed(key, place.segment)) needless.emplace_back(key, place);
  });
  for (const auto& [key, place] : needless) forget(key, place);
}

}  // namespace headrace
