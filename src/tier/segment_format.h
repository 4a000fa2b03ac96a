// The bytes of a segment: a header, then records, each a header and a payload
// (docs/formats/segment.md). Everything is a multiple of 4096 bytes, for direct IO and so that a
// reader finds its way again behind damage.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/sealed_page.h"
#include "headrace/result.h"

namespace headrace {

/// What a record holds. The numbers are part of the format: never renumber.
enum class RecordKind : std::uint8_t {
  page = 0,     ///< a sealed page
  block = 1,    ///< a small body by key
  session = 2,  ///< a small body by key
  erased = 3,   ///< a list of what is gone
};

const char* to_string(RecordKind kind);

/// Names one record that is alive.
struct RecordKey {
  RecordKind kind = RecordKind::page;
  std::uint32_t layer = 0;  ///< of a page
  Digest128 digest;         ///< of a page its block
  auto operator<=>(const RecordKey&) const = default;
};

RecordKey key_of(const PageKey& page);

inline constexpr std::uint64_t segment_unit_bytes = 4096;
inline constexpr std::uint64_t record_body_bytes_max = std::uint64_t{1} << 20;

struct SegmentHeader {
  std::uint32_t number = 0;
  bool is_scratch = false;          ///< of no use to another process
  std::uint64_t identity = 0;       ///< random; ties its records to it
  std::uint64_t next_sequence = 0;  ///< of its process when it was made
};

struct RecordHeader {
  RecordKind kind = RecordKind::page;
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;  ///< in the segment
  std::uint64_t sequence = 0;
  std::uint64_t payload_bytes = 0;
  SealedPage page;           ///< of a page
  Digest128 digest;          ///< of all others; of `erased` zero
  std::uint32_t covers = 0;  ///< of `erased`: what it lists lies in segments up to this one
  /// One per `checked_bytes` of payload, the last one may be shorter.
  std::uint64_t checked_bytes = 0;
  std::array<std::uint64_t, 492> checksums = {};

  std::uint64_t checksum_count() const {
    return (payload_bytes + checked_bytes - 1) / checked_bytes;
  }
  RecordKey key() const;
  std::uint64_t record_bytes() const {
    return segment_unit_bytes + round_up(payload_bytes, segment_unit_bytes);
  }
};

/// One line of the body of an `erased` record.
struct ErasedEntry {
  RecordKey key;
  std::uint64_t sequence = 0;  ///< kills records of this key with a smaller one
};
inline constexpr std::size_t erased_entry_bytes = 32;
inline constexpr std::size_t erased_entries_max = segment_unit_bytes / erased_entry_bytes;
/// Of a list on disk.
inline constexpr std::uint64_t list_bytes = 2 * segment_unit_bytes;
/// Two lists and the header of a segment for them.
inline constexpr std::uint64_t list_reserve_bytes = 2 * list_bytes + segment_unit_bytes;

/// Groups of a page that one checksum covers, where its codec keeps groups: as few as the header
/// has room for.
std::uint32_t checked_groups(const PageShape& shape);

/// Fills in the checksums of `payload`, whose bytes and unit the header says.
void set_checksums(RecordHeader& header, Bytes payload);
/// Errors: corrupt. `first` is the first checksum of these bytes.
Result<void> verify_payload(const RecordHeader& header, Bytes payload, std::uint64_t first = 0);

/// Into segment_unit_bytes.
void encode_segment_header(const SegmentHeader& header, MutableBytes out);
Result<SegmentHeader> decode_segment_header(Bytes in);
void encode_record_header(const RecordHeader& header, std::uint64_t segment_identity,
                          MutableBytes out);
/// Errors: corrupt; also when the record belongs to another segment or another place in it.
Result<RecordHeader> decode_record_header(Bytes in, const SegmentHeader& segment,
                                          std::uint64_t offset);

void encode_erased(std::span<const ErasedEntry> entries, MutableBytes out);
Result<std::vector<ErasedEntry>> decode_erased(Bytes in);

/// "seg-00000007.hrs", and the way back for exactly such names.
std::string segment_name(std::uint32_t number);
std::optional<std::uint32_t> segment_number(const std::string& name);

}  // namespace headrace
