// Walks through the records of a segment: for recovery, which reads headers only, and for scrub,
// which reads everything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "env/env.h"
#include "tier/segment_format.h"

namespace headrace {

struct SegmentScan {
  SegmentHeader header;
  std::uint64_t file_bytes = 0;
  std::uint64_t end_bytes = 0;  ///< behind the last whole record
};

/// Calls `visit` for every whole record. Where a header is damaged, `damage` is called once with
/// the place and the reason, and the search goes on at every next unit; a record that the file cuts
/// off is damage too, a unit of zeros is not. `unit` is scratch of segment_unit_bytes, aligned for
/// direct IO. Errors: corrupt (no segment, or not the one with this number), io.
Result<SegmentScan> scan_segment(
    File& file, std::uint32_t number, MutableBytes unit,
    const std::function<Result<void>(const RecordHeader&)>& visit,
    const std::function<void(std::uint64_t offset, const std::string& reason)>& damage);

}  // namespace headrace
