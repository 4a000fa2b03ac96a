// What the service thread of a SegmentStore does: room, lists of erased keys, syncs, compaction.
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

Result<Placement> SegmentStore::place(std::uint64_t bytes, std::uint64_t sequence) {
  return place_with_reserve(bytes, sequence, reserve_bytes());
}

// The reserve is what compaction needs to copy the records of one segment before it can remove it.
// So a caller that gives none is not helped by compaction.
Result<Placement> SegmentStore::place_with_reserve(std::uint64_t bytes, std::uint64_t sequence,
                                                   std::uint64_t reserve) {
  for (;;) {
    std::uint64_t needed = bytes;
    bool needs_room = false;
    {
      const std::lock_guard lock(mutex_);
      if (auto placement = take(bytes, sequence, reserve)) return *std::move(placement);
      const bool is_full =
          active_ == nullptr || (active_->used_bytes > segment_unit_bytes &&
                                 active_->used_bytes + bytes > options_.segment_bytes);
      if (is_full) needed += segment_unit_bytes;
      needs_room = !fits(needed, reserve);
    }
    if (!needs_room) {
      HEADRACE_TRY(new_segment());
    } else if (reserve > 0) {
      HEADRACE_TRY(make_room(needed, reserve));
    } else {
      return Error{ErrorCode::out_of_budget, "--kv-disk: there is no room to move what is stored"};
    }
  }
}

Result<void> SegmentStore::make_room(std::uint64_t bytes, std::uint64_t reserve) {
  for (;;) {
    SegmentRef dead, victim;
    std::uint64_t live_bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      if (fits(bytes, reserve)) return {};
      dead = find_dead();
      if (dead == nullptr) victim = pick_victim(true);
      for (const auto& [number, segment] : segments_) live_bytes += segment->live_bytes;
    }
    if (dead != nullptr) {
      HEADRACE_TRY(remove_segment(dead));
    } else if (victim != nullptr) {
      HEADRACE_TRY(empty_and_remove(victim));
    } else if (!give_up_foreign()) {
      return Error{ErrorCode::out_of_budget, "--kv-disk: " + format_byte_count(live_bytes) +
                                                 " of " + format_byte_count(options_.limit_bytes) +
                                                 " are in use, and the rest is needed to move it"};
    }
  }
}

SegmentStore::SegmentRef SegmentStore::find_dead() const {
  for (const auto& [number, segment] : segments_) {
    const bool is_dead = segment->live_bytes == 0 && segment->in_flight == 0;
    if (is_dead && segment->is_sealed && !segment->is_stuck) return segment;
  }
  return nullptr;
}

// The one with the least alive for its size, so that the fewest bytes are copied for the room.
SegmentStore::SegmentRef SegmentStore::pick_victim(bool must_have_room) const {
  SegmentRef best;
  double best_live = 2;
  for (const auto& [number, segment] : segments_) {
    if (segment->is_stuck || segment->in_flight > 0 || segment->foreign_bytes > 0) continue;
    if (segment->dead_bytes() == 0) continue;
    if (must_have_room && !fits(segment->live_bytes + segment_unit_bytes, 0)) continue;
    const double live =
        static_cast<double>(segment->live_bytes) / static_cast<double>(segment->used_bytes);
    if (live < best_live) best = segment;
    best_live = std::min(best_live, live);
  }
  return best;
}

// Records that nobody here can use: the oldest segment with some goes first.
bool SegmentStore::give_up_foreign() {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, segment] : segments_) {
    if (segment->foreign_bytes == 0) continue;
    segment->live_bytes -= std::exchange(segment->foreign_bytes, 0);
    return true;
  }
  return false;
}

Result<void> SegmentStore::new_segment() {
  SegmentHeader header{.is_scratch = !options_.keep, .identity = env_.random()};
  {
    const std::lock_guard lock(mutex_);
    seal_active();
    header.number = next_segment_++;
    header.next_sequence = next_sequence_;
  }
  const std::string path = directory_.file_path(segment_name(header.number));
  HEADRACE_TRY_ASSIGN(std::unique_ptr<File> file, env_.open_file(path, OpenMode::create_new));
  const MutableBytes bytes = buffer_.span().first(segment_unit_bytes);
  encode_segment_header(header, bytes);
  const Bytes part = bytes;
  auto made = [&]() -> Result<void> {
    if (options_.direct) {
      auto direct = file->use_direct_io();
      if (!direct.ok() && !std::exchange(warned_of_direct_, true)) warn(direct.error());
    }
    HEADRACE_TRY(file->write_at(0, std::span(&part, 1)));
    // Its name and header are durable before anything in it is.
    return options_.keep ? file->sync() : Result<void>();
  }();
  if (!made.ok()) {
    file.reset();
    if (auto removed = env_.remove_file(path); !removed.ok()) {
      warn(removed.error());
      const std::lock_guard lock(mutex_);
      foreign_file_bytes_ += segment_unit_bytes;
    }
    return made;
  }
  const std::lock_guard lock(mutex_);
  active_ = std::make_shared<Segment>(header, std::move(file));
  segments_.emplace(header.number, active_);
  note_peak();
  return {};
}

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

Result<void> SegmentStore::flush_erased() {
  for (;;) {
    std::vector<ErasedEntry> entries;
    SegmentRef oldest;
    {
      const std::lock_guard lock(mutex_);
      if (!options_.keep || erased_.empty()) return {};
      entries.assign(erased_.begin(), erased_.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                            erased_.size(), erased_entries_max)));
      const bool is_full = index_.size() == index_.capacity();
      if (is_full && segments_.size() > 1) oldest = segments_.begin()->second;
    }
    // Lists are needed as long as old segments are there.
    if (oldest != nullptr && oldest->in_flight == 0) HEADRACE_TRY(empty_and_remove(oldest));

    const std::uint64_t sequence = next_sequence();
    RecordHeader header{.kind = RecordKind::erased,
                        .sequence = sequence,
                        .payload_bytes = entries.size() * erased_entry_bytes,
                        .page = {},
                        .digest = {},
                        .checked_bytes = entries.size() * erased_entry_bytes};
    auto placed = place(header.record_bytes(), sequence);
    // What makes room later may use the reserve.
    if (!placed.ok() && placed.error().code == ErrorCode::out_of_budget) {
      placed = place_with_reserve(header.record_bytes(), sequence, 0);
    }
    HEADRACE_TRY_ASSIGN(const Placement placement, std::move(placed));
    header.segment = placement.place.segment;
    header.offset = placement.place.offset();
    header.covers = placement.place.segment;
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
    erased_.erase(erased_.begin(), erased_.begin() + static_cast<std::ptrdiff_t>(entries.size()));
  }
}

Result<void> SegmentStore::sync() {
  HEADRACE_TRY(evacuate_distrusted());
  HEADRACE_TRY(flush_erased());
  HEADRACE_TRY(sync_segments(nullptr));
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
        SegmentRef victim = pick_victim(true);
        if (victim == nullptr || victim == active_) return;
        // While there is room, only what is mostly dead is worth the copying.
        const bool is_short_of_room = !fits(options_.limit_bytes / 4, 0);
        const std::uint64_t worth_bytes = victim->used_bytes / (is_short_of_room ? 4 : 2);
        if (victim->dead_bytes() < worth_bytes) return;
        compaction_victim_ = std::move(victim);
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
    drop_damaged(key, from.place);
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
    set(key, to.place);
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
