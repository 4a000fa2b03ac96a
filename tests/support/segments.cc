#include "tests/support/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/support/temporary_directory.h"

namespace headrace::test {
namespace {

Bytes unit_at(const std::string& bytes, std::uint64_t offset) {
  return std::as_bytes(std::span(bytes)).subspan(offset, segment_unit_bytes);
}

Result<SegmentHeader> header_of(const std::string& segment_bytes) {
  if (segment_bytes.size() < segment_unit_bytes) return Error{ErrorCode::corrupt, "cut short"};
  return decode_segment_header(unit_at(segment_bytes, 0));
}

}  // namespace

std::vector<std::string> segment_files(const std::string& directory) {
  std::vector<std::string> paths;
  for (const std::string& name : list_names(directory)) {
    if (segment_number(name)) paths.push_back(directory + "/" + name);
  }
  return paths;
}

std::vector<RecordHeader> records_of(const std::string& segment_bytes) {
  std::vector<RecordHeader> records;
  const auto segment = header_of(segment_bytes);
  if (!segment.ok()) return records;
  std::uint64_t offset = segment_unit_bytes;
  while (offset + segment_unit_bytes <= segment_bytes.size()) {
    const auto record = decode_record_header(unit_at(segment_bytes, offset), *segment, offset);
    const bool is_whole = record.ok() && offset + record->record_bytes() <= segment_bytes.size();
    if (is_whole) records.push_back(*record);
    offset += is_whole ? record->record_bytes() : segment_unit_bytes;
  }
  return records;
}

std::vector<RecordHeader> page_records_of(const std::string& segment_bytes) {
  std::vector<RecordHeader> records = records_of(segment_bytes);
  std::erase_if(records, [](const RecordHeader& each) { return each.kind != RecordKind::page; });
  return records;
}

void move_record(const std::string& from_bytes, const RecordHeader& from,
                 std::string& segment_bytes, const RecordHeader& place) {
  const auto segment = header_of(segment_bytes);
  ASSERT_TRUE(segment.ok()) << segment.error().message;
  ASSERT_EQ(from.record_bytes(), place.record_bytes());
  RecordHeader header = from;
  header.segment = place.segment;
  header.offset = place.offset;
  std::array<std::byte, segment_unit_bytes> unit{};
  encode_record_header(header, segment->identity, unit);
  std::ranges::copy(std::as_bytes(std::span(unit)),
                    std::as_writable_bytes(std::span(segment_bytes)).begin() +
                        static_cast<std::ptrdiff_t>(place.offset));
  segment_bytes.replace(place.offset + segment_unit_bytes, from.record_bytes() - segment_unit_bytes,
                        from_bytes, from.offset + segment_unit_bytes,
                        from.record_bytes() - segment_unit_bytes);
}

}  // namespace headrace::test
