// What lies in the segments of a disk tier (docs/formats/segment.md), for tests that damage it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tier/segment_format.h"

namespace headrace::test {

/// Paths of the segments in `directory`, sorted.
std::vector<std::string> segment_files(const std::string& directory);

/// The whole records of a segment with these bytes, in order; what is damaged is passed over.
std::vector<RecordHeader> records_of(const std::string& segment_bytes);
/// Those of pages.
std::vector<RecordHeader> page_records_of(const std::string& segment_bytes);

/// Writes the record of `from` over `place` in `segment_bytes`, its header made to fit: all that
/// tells that it does not belong there is what the page says of itself. Both have as many bytes.
void move_record(const std::string& from_bytes, const RecordHeader& from,
                 std::string& segment_bytes, const RecordHeader& place);

}  // namespace headrace::test
