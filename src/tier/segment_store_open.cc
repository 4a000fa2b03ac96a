// How a SegmentStore begins, with what an earlier process left, and ends.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_memory.h"
#include "tier/segment_scan.h"
#include "tier/segment_store.h"

namespace headrace {
namespace {

// Between the newest record found and the next one written: more than damage can hide.
constexpr std::uint64_t sequence_gap = std::uint64_t{1} << 32;

void warn(const std::string& message) { log_message(LogLevel::warn, "kv disk: " + message); }

}  // namespace

Result<std::unique_ptr<SegmentStore>> SegmentStore::open(Env& env, TierDirectory& directory,
                                                         const SegmentStoreOptions& options) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(options.record_bytes_max));
  std::unique_ptr<SegmentStore> store(new SegmentStore(env, directory, options, std::move(buffer)));
  HEADRACE_TRY(store->recover());
  return store;
}

// For a clean end only: what was to be durable has been synced.
SegmentStore::~SegmentStore() {
  static_cast<void>(has_memory_for([this] { end(); }));
}

void SegmentStore::end() {
  if (options_.keep) {
    if (auto flushed = flush_erased(); !flushed.ok()) warn(flushed.error().message);
    return;
  }
  compaction_victim_.reset();
  active_.reset();
  for (auto& [number, segment] : segments_) {
    segment.reset();
    auto removed = env_.remove_file(directory_.file_path(segment_name(number)));
    if (!removed.ok()) warn(removed.error().message);
  }
}

Result<void> SegmentStore::recover() {
  HEADRACE_TRY_ASSIGN(const std::vector<std::string> names, env_.list_directory(directory_.path()));
  std::map<RecordKey, std::uint64_t> erased;
  // Newest first, so that they are the ones that find room in the index.
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const auto number = segment_number(*name);
    if (number) next_segment_ = std::max(next_segment_, *number + 1);
    if (number) {
      recover_segment(*name, *number, erased);
    } else if (!TierDirectory::is_own_name(*name)) {
      measure_foreign_file(*name);
    }
  }
  for (const auto& [key, sequence] : erased) {
    const auto place = index_.find(key);
    if (place && place->sequence < sequence) forget(key, *place);
  }
  // Above all that was ever given, also in segments that could not be read: every process begins a
  // gap higher than the one before, and those that wrote anything made a segment.
  if (!segments_.empty()) next_sequence_ += sequence_gap;
  is_directory_synced_ = segments_.empty();  // by this process
  next_sequence_ = std::max(next_sequence_, (next_segment_ - 1) * sequence_gap);
  stats_.recovered_pages = stats_.records[static_cast<std::size_t>(RecordKind::page)];
  drop_pages_beyond_limit();
  note_peak();
  return {};
}

void SegmentStore::recover_segment(const std::string& name, std::uint32_t number,
                                   std::map<RecordKey, std::uint64_t>& erased) {
  const std::string path = directory_.file_path(name);
  auto file = env_.open_file(path, OpenMode::read_write);
  const auto leave_alone = [&](const Error& error) {
    warn(name + " is left alone: " + error.message);
    if (error.code == ErrorCode::io) is_complete_ = false;
    oldest_unread_segment_ = std::min(oldest_unread_segment_, number);
    measure_foreign_file(name);
  };
  if (!file.ok()) return leave_alone(file.error());
  const MutableBytes unit = buffer_.span().first(segment_unit_bytes);

  // The header first: what it says decides whether the records are ours.
  const auto header = [&]() -> Result<SegmentHeader> {
    HEADRACE_TRY((*file)->read_at(0, std::span(&unit, 1)));
    return decode_segment_header(unit);
  }();
  const bool is_left_over = header.ok() && header->is_scratch;
  // The header is durable before any record is, so this never had one.
  const auto size = (*file)->size();
  const bool is_unborn = !header.ok() && header.error().code == ErrorCode::corrupt && size.ok() &&
                         *size <= segment_unit_bytes;
  if (is_left_over || is_unborn) {
    file->reset();
    if (auto removed = env_.remove_file(path); !removed.ok()) leave_alone(removed.error());
    return;
  }
  if (!header.ok() && header.error().code == ErrorCode::corrupt && size.ok() && options_.keep) {
    // Nothing in it can be used, but perhaps repaired: it stays until its room is needed.
    warn(name + " is damaged: " + header.error().message);
    const auto damaged =
        std::make_shared<Segment>(SegmentHeader{.number = number}, std::move(file).value());
    damaged->is_sealed = true;
    damaged->used_bytes = round_up(*size, segment_unit_bytes);
    damaged->live_bytes = damaged->foreign_bytes = damaged->used_bytes - segment_unit_bytes;
    segments_.emplace(number, damaged);
    return;
  }
  if (!header.ok()) return leave_alone(header.error());
  if (!options_.keep) return measure_foreign_file(name);

  const auto segment = std::make_shared<Segment>(*header, std::move(file).value());
  segment->is_sealed = true;
  // What is found was read out of the system's cache, perhaps: a process that was killed, or whose
  // sync failed, has left it there.
  segment->synced_written_bytes.reset();
  segments_.emplace(number, segment);
  next_sequence_ = std::max(next_sequence_, header->next_sequence);
  auto scan = scan_segment(
      *segment->file, number, unit,
      [&](const RecordHeader& record) -> Result<void> {
        next_sequence_ = std::max(next_sequence_, record.sequence + 1);
        // Pages are verified when they are used: another one of their key has the same bytes. A
        // small record that is torn must not hide the whole one before it.
        if (record.kind == RecordKind::page || record.record_bytes() > options_.record_bytes_max) {
          recover_record(segment, record);
          return {};
        }
        segment->has_held_small = true;
        const MutableBytes whole =
            buffer_.span().subspan(segment_unit_bytes, record.record_bytes() - segment_unit_bytes);
        HEADRACE_TRY(
            segment->file->read_at(record.offset + segment_unit_bytes, std::span(&whole, 1)));
        const Bytes body = Bytes(whole).first(record.payload_bytes);
        if (!verify_payload(record, body).ok()) {
          ++stats_.damaged;
          return {};
        }
        recover_record(segment, record);
        if (record.kind != RecordKind::erased) return {};
        HEADRACE_TRY_ASSIGN(const std::vector<ErasedEntry> entries, decode_erased(body));
        for (const ErasedEntry& entry : entries) {
          std::uint64_t& sequence = erased[entry.key];
          sequence = std::max(sequence, entry.sequence);
          next_sequence_ = std::max(next_sequence_, entry.sequence + 1);
        }
        return {};
      },
      [&](std::uint64_t offset, const std::string& reason) {
        log_message(LogLevel::info,
                    "kv disk: " + name + " at byte " + std::to_string(offset) + ": " + reason);
      });
  if (!scan.ok()) {
    // Nothing of it is used, and nothing of it is lost.
    std::vector<std::pair<RecordKey, RecordPlace>> found;
    index_.for_each([&](const RecordKey& key, const RecordPlace& place) {
      if (place.segment == number) found.emplace_back(key, place);
    });
    for (const auto& [key, place] : found) forget(key, place);
    segments_.erase(number);
    return leave_alone(scan.error());
  }
  segment->used_bytes = std::max(round_up(scan->file_bytes, segment_unit_bytes), scan->end_bytes);
}

void SegmentStore::recover_record(const SegmentRef& segment, const RecordHeader& header) {
  const std::uint64_t bytes = header.record_bytes();
  const bool is_foreign = header.kind == RecordKind::page && !options_.is_ours(header.page);
  if (is_foreign || bytes > options_.record_bytes_max) {
    segment->live_bytes += bytes;
    segment->foreign_bytes += bytes;
    return;
  }
  const RecordPlace place{.segment = segment->header.number,
                          .unit = static_cast<std::uint32_t>(header.offset / segment_unit_bytes),
                          .units = static_cast<std::uint32_t>(bytes / segment_unit_bytes),
                          .sequence = header.sequence};
  const auto other = index_.find(header.key());
  // Of a record and its copy the older one: it goes only when the copy is durable.
  if (other && other->sequence > place.sequence) return;
  const std::uint64_t count = stats_.records[static_cast<std::size_t>(header.kind)];
  const bool is_full = header.kind == RecordKind::page
                           ? count >= options_.pages_max
                           : header.kind != RecordKind::erased && count >= options_.records_max;
  // More than this process was told to keep: the oldest are not found again.
  if (!other && is_full) return;
  if (set(header.key(), place)) index_.set_verified(header.key(), header.kind != RecordKind::page);
}

void SegmentStore::measure_foreign_file(const std::string& name) {
  auto file = env_.open_file(directory_.file_path(name), OpenMode::read);
  if (!file.ok()) return;  // a directory, or somebody's secret: it cannot be counted
  const auto size = (*file)->size();
  if (size.ok()) foreign_file_bytes_ += *size;
}

// A smaller limit than that of the process before: whole segments of pages go, oldest first.
void SegmentStore::drop_pages_beyond_limit() {
  std::vector<SegmentRef> oldest_first;
  oldest_first.reserve(segments_.size());
  for (const auto& [number, segment] : segments_) oldest_first.push_back(segment);
  for (const SegmentRef& segment : oldest_first) {
    if (fits(0, 0)) return;
    std::vector<std::pair<RecordKey, RecordPlace>> pages;
    index_.for_each([&](const RecordKey& key, const RecordPlace& place) {
      const bool is_here = place.segment == segment->header.number;
      if (is_here && key.kind == RecordKind::page) pages.emplace_back(key, place);
    });
    for (const auto& [key, place] : pages) forget(key, place);
    segment->live_bytes -= std::exchange(segment->foreign_bytes, 0);
    if (segment->live_bytes > 0) continue;
    const std::string name = segment_name(segment->header.number);
    if (auto removed = env_.remove_file(directory_.file_path(name)); !removed.ok()) {
      warn(removed.error().message);
      continue;
    }
    is_directory_synced_ = false;
    segments_.erase(segment->header.number);
  }
}

}  // namespace headrace
