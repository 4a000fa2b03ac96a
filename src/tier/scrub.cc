#include "tier/scrub.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/aligned_buffer.h"
#include "tier/segment_format.h"
#include "tier/segment_scan.h"
#include "tier/tier_directory.h"

namespace headrace {
namespace {

// Payloads are verified in pieces of this or of one checksum, whichever is more.
constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t checked_bytes_max = std::uint64_t{256} << 20;

struct DamagedPayload {
  RecordKey key;
  std::uint64_t sequence = 0;
  ScrubDamage damage;
};

class Scrubber {
 public:
  Scrubber(Env& env, TierDirectory& directory, bool repair)
      : env_(env), directory_(directory), repair_(repair) {}

  Result<ScrubReport> run() {
    HEADRACE_TRY_ASSIGN(unit_, AlignedBuffer::allocate(segment_unit_bytes));
    HEADRACE_TRY_ASSIGN(const auto names, env_.list_directory(directory_.path()));
    for (const std::string& name : names) {
      const auto number = segment_number(name);
      if (number) {
        HEADRACE_TRY(scrub_segment(name, *number));
      } else if (!TierDirectory::is_own_name(name)) {
        report_.foreign_files.push_back(name);
      }
    }
    std::vector<ErasedEntry> entries;
    for (DamagedPayload& each : payloads_) {
      const auto erased = erased_.find(each.key);
      if (erased != erased_.end() && each.sequence < erased->second) continue;  // dead anyway
      entries.push_back({.key = each.key, .sequence = each.sequence + 1});
      report_.damaged.push_back(std::move(each.damage));
    }
    if (repair_) HEADRACE_TRY(write_lists(entries));
    report_.is_repaired = repair_;
    return std::move(report_);
  }

 private:
  Result<void> scrub_segment(const std::string& name, std::uint32_t number) {
    const auto mode = repair_ ? OpenMode::read_write : OpenMode::read;
    HEADRACE_TRY_ASSIGN(const auto file, env_.open_file(directory_.file_path(name), mode));
    ++report_.segments;
    last_number_ = std::max(last_number_, number);
    HEADRACE_TRY_ASSIGN(const std::uint64_t file_bytes, file->size());
    report_.bytes += file_bytes;

    std::optional<std::uint64_t> damage_start;
    const auto end_damage = [&](std::uint64_t end) -> Result<void> {
      if (repair_ && damage_start) HEADRACE_TRY(clear(*file, *damage_start, end));
      damage_start.reset();
      return {};
    };
    const auto scan = scan_segment(
        *file, number, unit_.span(),
        [&](const RecordHeader& record) -> Result<void> {
          next_sequence_ = std::max(next_sequence_, record.sequence + 1);
          HEADRACE_TRY(end_damage(record.offset));
          return scrub_record(*file, name, record);
        },
        [&](std::uint64_t offset, const std::string& reason) {
          damage_start = offset;
          report_.damaged.push_back({name, offset, reason});
        });
    if (!scan.ok() && scan.error().code == ErrorCode::corrupt) {
      report_.damaged.push_back({name, 0, scan.error().message});
      return {};
    }
    if (!scan.ok()) return scan.error();
    if (!repair_ || !damage_start) return {};
    HEADRACE_TRY(file->truncate(*damage_start));
    return file->sync();
  }

  Result<void> scrub_record(File& file, const std::string& name, const RecordHeader& record) {
    auto verified = verify(file, record);
    if (!verified.ok() && verified.error().code != ErrorCode::corrupt) return verified;
    if (!verified.ok()) {
      payloads_.push_back({.key = record.key(),
                           .sequence = record.sequence,
                           .damage = {name, record.offset, verified.error().message}});
      return {};
    }
    ++report_.records[static_cast<std::size_t>(record.kind)];
    report_.record_bytes += record.record_bytes();
    return {};
  }

  Result<void> verify(File& file, const RecordHeader& record) {
    if (record.checked_bytes > checked_bytes_max) {
      return Error{ErrorCode::corrupt, "the record has an impossible length"};
    }
    const std::uint64_t checks = std::max<std::uint64_t>(1, piece_bytes / record.checked_bytes);
    const std::uint64_t bytes = checks * record.checked_bytes;
    if (piece_.size() < bytes) {
      HEADRACE_TRY_ASSIGN(piece_, AlignedBuffer::allocate(bytes));
    }
    for (std::uint64_t at = 0; at < record.payload_bytes; at += bytes) {
      const MutableBytes part = piece_.span().first(std::min(bytes, record.payload_bytes - at));
      HEADRACE_TRY(file.read_at(record.offset + segment_unit_bytes + at, std::span(&part, 1)));
      HEADRACE_TRY(verify_payload(record, part, at / record.checked_bytes));
      if (record.kind != RecordKind::erased) continue;
      HEADRACE_TRY_ASSIGN(const auto entries, decode_erased(part));
      for (const ErasedEntry& entry : entries) {
        std::uint64_t& sequence = erased_[entry.key];
        sequence = std::max(sequence, entry.sequence);
        next_sequence_ = std::max(next_sequence_, entry.sequence + 1);
      }
    }
    return {};
  }

  /// Makes units empty, which is no damage.
  Result<void> clear(File& file, std::uint64_t start, std::uint64_t end) {
    HEADRACE_TRY_ASSIGN(const AlignedBuffer zeros, AlignedBuffer::allocate(segment_unit_bytes));
    const Bytes unit = zeros.span();
    for (std::uint64_t at = start; at < end; at += segment_unit_bytes) {
      HEADRACE_TRY(file.write_at(at, std::span(&unit, 1)));
    }
    return file.sync();
  }

  /// A segment of its own that says what is gone.
  Result<void> write_lists(std::span<const ErasedEntry> entries) {
    if (entries.empty()) return {};
    const SegmentHeader segment{
        .number = last_number_ + 1, .identity = env_.random(), .next_sequence = next_sequence_};
    const std::string path = directory_.file_path(segment_name(segment.number));
    HEADRACE_TRY_ASSIGN(const auto file, env_.open_file(path, OpenMode::create_new));
    const MutableBytes unit = unit_.span();
    const Bytes part = unit;
    encode_segment_header(segment, unit);
    HEADRACE_TRY(file->write_at(0, std::span(&part, 1)));
    std::uint64_t offset = segment_unit_bytes;
    while (!entries.empty()) {
      const auto some = entries.first(std::min(entries.size(), erased_entries_max));
      entries = entries.subspan(some.size());
      std::vector<std::byte> body(segment_unit_bytes);
      encode_erased(some, body);
      RecordHeader header{.kind = RecordKind::erased,
                          .segment = segment.number,
                          .offset = offset,
                          .sequence = next_sequence_++,
                          .payload_bytes = some.size() * erased_entry_bytes,
                          .page = {},
                          .digest = {},
                          .covers = segment.number,
                          .checked_bytes = some.size() * erased_entry_bytes};
      set_checksums(header, Bytes(body).first(header.payload_bytes));
      encode_record_header(header, segment.identity, unit);
      const std::array<Bytes, 2> parts = {unit, body};
      HEADRACE_TRY(file->write_at(offset, parts));
      offset += list_bytes;
    }
    return file->sync();
  }

  Env& env_;
  TierDirectory& directory_;
  const bool repair_;
  AlignedBuffer unit_;
  AlignedBuffer piece_;
  ScrubReport report_;
  std::vector<DamagedPayload> payloads_;
  std::map<RecordKey, std::uint64_t> erased_;
  std::uint32_t last_number_ = 0;
  std::uint64_t next_sequence_ = 1;
};

}  // namespace

Result<ScrubReport> scrub_directory(Env& env, const std::string& directory, bool repair) {
  if (!env.exists(directory)) {
    return Error{ErrorCode::not_found, "there is no directory '" + directory + "'"};
  }
  HEADRACE_TRY_ASSIGN(const auto claimed, TierDirectory::open(env, directory));
  return Scrubber(env, *claimed, repair).run();
}

}  // namespace headrace
