#include "tier/segment_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace headrace {

SegmentStore::SegmentStore(Env& env, TierDirectory& directory, const SegmentStoreOptions& options,
                           AlignedBuffer buffer)
    : env_(env),
      directory_(directory),
      options_(options),
      buffer_(std::move(buffer)),
      index_(options.index_capacity) {
  erased_.reserve(2 * erased_entries_max);
}

std::uint64_t SegmentStore::memory_bytes(const SegmentStoreOptions& options) {
  return RecordIndex::memory_bytes(options.index_capacity) + options.record_bytes_max +
         2 * erased_entries_max * sizeof(ErasedEntry);
}

std::uint64_t SegmentStore::next_sequence() {
  const std::lock_guard lock(mutex_);
  return next_sequence_++;
}

std::optional<Placement> SegmentStore::find(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto place = index_.find(key);
  if (!place) return std::nullopt;
  return Placement{segments_.at(place->segment), *place};
}

bool SegmentStore::has_verified(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.is_verified(key);
}

void SegmentStore::note_verified(const RecordKey& key, const RecordPlace& place) {
  const std::lock_guard lock(mutex_);
  if (index_.find(key) == place) index_.set_verified(key, true);
}

std::vector<Digest128> SegmentStore::keys(RecordKind kind) const {
  const std::lock_guard lock(mutex_);
  std::vector<Digest128> keys;
  index_.for_each([&](const RecordKey& key, const RecordPlace&) {
    if (key.kind == kind) keys.push_back(key.digest);
  });
  return keys;
}

std::uint64_t SegmentStore::count(RecordKind kind) const {
  const std::lock_guard lock(mutex_);
  return stats_.records[static_cast<std::size_t>(kind)];
}

std::optional<Placement> SegmentStore::try_place(std::uint64_t bytes, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  return take(bytes, sequence, put_reserve());
}

bool SegmentStore::commit(const RecordKey& key, const Placement& placement) {
  const std::lock_guard lock(mutex_);
  end_flight(placement);
  stats_.written_bytes += placement.place.bytes();
  const auto other = index_.find(key);
  if (other && other->sequence > placement.place.sequence) return true;
  return set(key, placement.place);
}

void SegmentStore::abandon(const Placement& placement) {
  const std::lock_guard lock(mutex_);
  end_flight(placement);
  // What is behind a failed write is not written to either.
  placement.segment->is_sealed = true;
  if (active_ == placement.segment) active_.reset();
}

void SegmentStore::discard(const RecordKey& key, const Placement& placement) {
  const std::lock_guard lock(mutex_);
  end_flight(placement);
  stats_.written_bytes += placement.place.bytes();
  if (options_.keep) erased_.push_back({.key = key, .sequence = placement.place.sequence + 1});
}

bool SegmentStore::erase(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  const auto place = index_.find(key);
  if (!place) return false;
  forget(key, *place);
  if (options_.keep) erased_.push_back({.key = key, .sequence = next_sequence_++});
  return true;
}

void SegmentStore::erase_until(const RecordKey& key, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const auto place = index_.find(key);
  if (!place || place->sequence > sequence) return;
  forget(key, *place);
  if (options_.keep) erased_.push_back({.key = key, .sequence = sequence + 1});
}

void SegmentStore::drop_unusable(const RecordKey& key, const RecordPlace& place,
                                 const Error& error) {
  const std::lock_guard lock(mutex_);
  const auto now = index_.find(key);
  if (!now || *now != place) return;
  forget(key, place);
  // What the device did not give may be whole: a later process may try again. Of what is damaged
  // the place stays dead, and an older record of the key must not come back instead of it.
  const bool is_damaged = error.code != ErrorCode::io;
  if (options_.keep && is_damaged) erased_.push_back({.key = key, .sequence = place.sequence + 1});
}

Result<std::vector<std::byte>> SegmentStore::read_body(RecordKind kind, const Digest128& key) {
  const RecordKey name{.kind = kind, .digest = key};
  const auto found = find(name);
  if (!found) return Error{ErrorCode::not_found, "the disk tier does not have this record"};
  HEADRACE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(found->place.bytes()));
  const MutableBytes bytes = buffer.span();
  const auto load = [&]() -> Result<std::vector<std::byte>> {
    HEADRACE_TRY(found->file().read_at(found->place.offset(), std::span(&bytes, 1)));
    HEADRACE_TRY_ASSIGN(const RecordHeader header,
                        decode_record_header(bytes.first(segment_unit_bytes),
                                             found->segment->header, found->place.offset()));
    if (header.key() != name || header.sequence != found->place.sequence ||
        header.record_bytes() != bytes.size()) {
      return Error{ErrorCode::corrupt, "the stored record is another one"};
    }
    const Bytes body = bytes.subspan(segment_unit_bytes, header.payload_bytes);
    HEADRACE_TRY(verify_payload(header, body));
    return std::vector<std::byte>(body.begin(), body.end());
  };
  auto body = load();
  if (!body.ok() && body.error().code == ErrorCode::corrupt) {
    drop_unusable(name, found->place, body.error());
    const std::lock_guard lock(mutex_);
    ++stats_.damaged;
  }
  return body;
}

bool SegmentStore::wants_flush() const {
  const std::lock_guard lock(mutex_);
  return erased_.size() >= erased_entries_max;
}

void SegmentStore::drop_cache() {
  std::vector<SegmentRef> segments;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, segment] : segments_) segments.push_back(segment);
  }
  for (const SegmentRef& segment : segments) {
    // The system forgets only what it has written back.
    if (auto synced = segment->file->sync(); !synced.ok()) {
      log_message(LogLevel::warn, "kv disk: " + synced.error().message);
      const std::lock_guard lock(mutex_);
      segment->is_distrusted = segment->is_sealed = true;
      if (active_ == segment) active_.reset();
    }
    segment->file->drop_cache();
  }
}

SegmentStoreStats SegmentStore::stats() const {
  const std::lock_guard lock(mutex_);
  SegmentStoreStats stats = stats_;
  stats.bytes = directory_bytes();
  stats.segments = segments_.size();
  stats.foreign_bytes = foreign_file_bytes_;
  for (const auto& [number, segment] : segments_) {
    stats.live_bytes += segment->live_bytes - segment->foreign_bytes;
    stats.foreign_bytes += segment->foreign_bytes;
  }
  return stats;
}

std::uint64_t SegmentStore::directory_bytes() const {
  std::uint64_t bytes = foreign_file_bytes_;
  for (const auto& [number, segment] : segments_) bytes += segment->used_bytes;
  return bytes;
}

bool SegmentStore::fits(std::uint64_t bytes, std::uint64_t reserve) const {
  return limit_bytes_ == 0 || directory_bytes() + bytes + reserve <= limit_bytes_;
}

std::optional<Placement> SegmentStore::take(std::uint64_t bytes, std::uint64_t sequence,
                                            std::uint64_t reserve) {
  if (active_ == nullptr || !fits(bytes, reserve)) return std::nullopt;
  const bool is_empty = active_->used_bytes == segment_unit_bytes;
  if (!is_empty && active_->used_bytes + bytes > options_.segment_bytes) return std::nullopt;
  const RecordPlace place{
      .segment = active_->header.number,
      .unit = static_cast<std::uint32_t>(active_->used_bytes / segment_unit_bytes),
      .units = static_cast<std::uint32_t>(bytes / segment_unit_bytes),
      .sequence = sequence};
  active_->used_bytes += bytes;
  active_->in_flight_bytes += bytes;
  ++active_->in_flight;
  note_peak();
  return Placement{active_, place};
}

void SegmentStore::end_flight(const Placement& placement) {
  Segment& segment = *placement.segment;
  --segment.in_flight;
  segment.in_flight_bytes -= placement.place.bytes();
  segment.written_bytes += placement.place.bytes();
}

void SegmentStore::seal_active() {
  if (active_ != nullptr) active_->is_sealed = true;
  active_.reset();
}

void SegmentStore::forget(const RecordKey& key, const RecordPlace& place) {
  segments_.at(place.segment)->live_bytes -= place.bytes();
  index_.erase(key);
  --stats_.records[static_cast<std::size_t>(key.kind)];
}

bool SegmentStore::set(const RecordKey& key, const RecordPlace& place) {
  const auto old = index_.find(key);
  if (!index_.set(key, place)) return false;
  if (old) {
    segments_.at(old->segment)->live_bytes -= old->bytes();
  } else {
    ++stats_.records[static_cast<std::size_t>(key.kind)];
  }
  Segment& segment = *segments_.at(place.segment);
  segment.live_bytes += place.bytes();
  if (key.kind != RecordKind::page) segment.has_held_small = true;
  return true;
}

// What a put must leave: room to move a segment, and room for what is erased to be written down.
std::uint64_t SegmentStore::put_reserve() const {
  return segment_reserve() +
         (options_.keep ? list_reserve_bytes + erased_.size() / erased_entries_max * list_bytes
                        : 0);
}

void SegmentStore::note_peak() {
  stats_.bytes_peak = std::max(stats_.bytes_peak, directory_bytes());
}

}  // namespace headrace
