#include "tier/segment_scan.h"

#include <algorithm>

namespace headrace {

Result<SegmentScan> scan_segment(
    File& file, std::uint32_t number, MutableBytes unit,
    const std::function<Result<void>(const RecordHeader&)>& visit,
    const std::function<void(std::uint64_t offset, const std::string& reason)>& damage) {
  const auto read_unit = [&](std::uint64_t offset) {
    return file.read_at(offset, std::span(&unit, 1));
  };
  SegmentScan scan;
  HEADRACE_TRY_ASSIGN(scan.file_bytes, file.size());
  if (scan.file_bytes < segment_unit_bytes) {
    return Error{ErrorCode::corrupt, "the segment's header is cut short"};
  }
  HEADRACE_TRY(read_unit(0));
  HEADRACE_TRY_ASSIGN(scan.header, decode_segment_header(unit));
  if (scan.header.number != number) {
    return Error{ErrorCode::corrupt, "the segment has number " +
                                         std::to_string(scan.header.number) + " instead of " +
                                         std::to_string(number)};
  }
  scan.end_bytes = segment_unit_bytes;
  bool in_damage = false;
  const auto report = [&](std::uint64_t offset, const std::string& reason) {
    if (!in_damage) damage(offset, reason);
    in_damage = true;
  };
  std::uint64_t offset = segment_unit_bytes;
  while (offset < scan.file_bytes) {
    if (scan.file_bytes - offset < segment_unit_bytes) {
      report(offset, "the last record is cut short");
      break;
    }
    HEADRACE_TRY(read_unit(offset));
    const auto header = decode_record_header(unit, scan.header, offset);
    const auto is_zero = [](std::byte each) { return each == std::byte{0}; };
    if (!header.ok() && std::ranges::all_of(unit, is_zero)) {
      offset += segment_unit_bytes;  // never written, or cleared by a repair
      continue;
    }
    if (!header.ok()) {
      report(offset, header.error().message);
      offset += segment_unit_bytes;
      continue;
    }
    if (header->record_bytes() > scan.file_bytes - offset) {
      report(offset, "the last record is cut short");
      break;
    }
    in_damage = false;
    HEADRACE_TRY(visit(*header));
    offset += header->record_bytes();
    scan.end_bytes = offset;
  }
  return scan;
}

}  // namespace headrace
