#include "tier/segment_format.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/little_endian.h"
#include "codec/group_layout.h"

namespace headrace {
namespace {

// The line end shows a copy that went through a text conversion.
constexpr std::uint64_t segment_magic = 0x0A0D'4745'5345'5248;  // "HRESEG\r\n"
constexpr std::uint64_t record_magic = 0x0A0D'4345'5245'5248;   // "HREREC\r\n"
constexpr std::uint32_t format_version = 2;

// Both headers. docs/formats/segment.md is the other copy of these tables.
constexpr std::size_t magic_at = 0;
constexpr std::size_t version_at = 8;

constexpr std::size_t segment_number_at = 12;
constexpr std::size_t segment_flags_at = 16;
constexpr std::size_t segment_identity_at = 24;
constexpr std::size_t segment_sequence_at = 32;
constexpr std::size_t segment_checksum_at = 40;
constexpr std::size_t segment_unused_at = 56;

constexpr std::size_t kind_at = 12;
constexpr std::size_t segment_at = 16;
constexpr std::size_t unit_at = 20;
constexpr std::size_t sequence_at = 24;
constexpr std::size_t payload_bytes_at = 32;
constexpr std::size_t checked_bytes_at = 40;
constexpr std::size_t covers_at = 48;
constexpr std::size_t subject_at = 64;
constexpr std::size_t checksum_at = 144;
constexpr std::size_t checksums_at = 160;
static_assert(subject_at + sealed_page_bytes == checksum_at);
static_assert(checksums_at + sizeof(RecordHeader::checksums) == segment_unit_bytes);

// Larger payloads are damage. It also keeps sums of sizes far from overflow.
constexpr std::uint64_t payload_bytes_max = std::uint64_t{1} << 40;

Error corrupt(std::string message) { return {ErrorCode::corrupt, std::move(message)}; }

std::uint64_t checksum64(Bytes bytes) { return hash_bytes(bytes).low; }

bool all_zero(Bytes bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

/// The checksum of a header: that of its bytes with the segment's identity in its place.
Digest128 header_checksum(Bytes header, std::size_t at, std::uint64_t identity) {
  std::array<std::byte, segment_unit_bytes> bytes;
  std::ranges::copy(header, bytes.begin());
  store(bytes, at, Digest128{.low = identity, .high = 0});
  return hash_bytes(bytes);
}

Result<void> check_start(Bytes in, std::uint64_t magic, const char* what) {
  if (in.size() != segment_unit_bytes) return corrupt(std::string(what) + " is cut short");
  if (load<std::uint64_t>(in, magic_at) != magic) return corrupt(std::string("not ") + what);
  if (const auto version = load<std::uint32_t>(in, version_at); version != format_version) {
    return corrupt(std::string(what) + " has format version " + std::to_string(version) +
                   ", this build reads version " + std::to_string(format_version));
  }
  return {};
}

bool is_possible_size(const RecordHeader& header) {
  if (header.payload_bytes == 0 || header.payload_bytes > payload_bytes_max) return false;
  if (header.checked_bytes == 0 || header.checked_bytes > header.payload_bytes) return false;
  return header.checksum_count() <= header.checksums.size();
}

}  // namespace

const char* to_string(RecordKind kind) {
  switch (kind) {
    case RecordKind::page:
      return "page";
    case RecordKind::block:
      return "block";
    case RecordKind::session:
      return "session";
    case RecordKind::erased:
      return "erased";
  }
  return "unknown";
}

RecordKey key_of(const PageKey& page) {
  return {.kind = RecordKind::page, .layer = page.layer, .digest = page.block};
}

RecordKey RecordHeader::key() const {
  if (kind == RecordKind::page) return key_of(page.identity.key);
  // Lists have no name of their own; this one makes them different and says what they cover.
  if (kind == RecordKind::erased) {
    return {.kind = kind, .digest = {.low = sequence, .high = covers}};
  }
  return {.kind = kind, .digest = digest};
}

std::uint32_t checked_groups(const PageShape& shape) {
  return shape.tokens / group_tokens <= RecordHeader().checksums.size() ? 1 : 2;
}

void set_checksums(RecordHeader& header, Bytes payload) {
  HEADRACE_CHECK(payload.size() == header.payload_bytes && is_possible_size(header),
                 "a header describes its payload");
  for (std::uint64_t i = 0; i < header.checksum_count(); ++i) {
    const std::uint64_t start = i * header.checked_bytes;
    const std::uint64_t size = std::min(header.checked_bytes, header.payload_bytes - start);
    header.checksums[i] = checksum64(payload.subspan(start, size));
  }
}

Result<void> verify_payload(const RecordHeader& header, Bytes payload, std::uint64_t first) {
  for (std::uint64_t i = first; !payload.empty(); ++i) {
    const Bytes part = payload.first(std::min<std::uint64_t>(header.checked_bytes, payload.size()));
    if (checksum64(part) != header.checksums[i]) {
      return corrupt("the stored " + std::string(to_string(header.kind)) +
                     " does not match its checksum " + std::to_string(i));
    }
    payload = payload.subspan(part.size());
  }
  return {};
}

void encode_segment_header(const SegmentHeader& header, MutableBytes out) {
  HEADRACE_CHECK(out.size() == segment_unit_bytes, "a header has a fixed size");
  std::ranges::fill(out, std::byte{0});
  store(out, magic_at, segment_magic);
  store(out, version_at, format_version);
  store(out, segment_number_at, header.number);
  store(out, segment_flags_at, std::uint32_t{header.is_scratch ? 1U : 0U});
  store(out, segment_identity_at, header.identity);
  store(out, segment_sequence_at, header.next_sequence);
  store(out, segment_checksum_at, header_checksum(out, segment_checksum_at, 0));
}

Result<SegmentHeader> decode_segment_header(Bytes in) {
  HEADRACE_TRY(check_start(in, segment_magic, "a segment"));
  if (load_digest(in, segment_checksum_at) != header_checksum(in, segment_checksum_at, 0)) {
    return corrupt("the segment's header does not match its checksum");
  }
  const auto flags = load<std::uint32_t>(in, segment_flags_at);
  if (flags > 1 || load<std::uint32_t>(in, segment_flags_at + 4) != 0 ||
      !all_zero(in.subspan(segment_unused_at))) {
    return corrupt("the segment's header has unused bytes that are not zero");
  }
  return SegmentHeader{.number = load<std::uint32_t>(in, segment_number_at),
                       .is_scratch = flags == 1,
                       .identity = load<std::uint64_t>(in, segment_identity_at),
                       .next_sequence = load<std::uint64_t>(in, segment_sequence_at)};
}

void encode_record_header(const RecordHeader& header, std::uint64_t segment_identity,
                          MutableBytes out) {
  HEADRACE_CHECK(out.size() == segment_unit_bytes, "a header has a fixed size");
  HEADRACE_CHECK(is_possible_size(header), "a record has a payload under checksums");
  std::ranges::fill(out, std::byte{0});
  store(out, magic_at, record_magic);
  store(out, version_at, format_version);
  store(out, kind_at, static_cast<std::uint8_t>(header.kind));
  store(out, segment_at, header.segment);
  store(out, unit_at, static_cast<std::uint32_t>(header.offset / segment_unit_bytes));
  store(out, sequence_at, header.sequence);
  store(out, payload_bytes_at, header.payload_bytes);
  store(out, checked_bytes_at, header.checked_bytes);
  store(out, covers_at, header.covers);
  if (header.kind == RecordKind::page) {
    encode_sealed_page(header.page, out.subspan(subject_at, sealed_page_bytes));
  } else {
    store(out, subject_at, header.digest);
  }
  for (std::uint64_t i = 0; i < header.checksum_count(); ++i) {
    store(out, checksums_at + 8 * i, header.checksums[i]);
  }
  store(out, checksum_at, header_checksum(out, checksum_at, segment_identity));
}

Result<RecordHeader> decode_record_header(Bytes in, const SegmentHeader& segment,
                                          std::uint64_t offset) {
  HEADRACE_TRY(check_start(in, record_magic, "a record"));
  if (load_digest(in, checksum_at) != header_checksum(in, checksum_at, segment.identity)) {
    return corrupt("the record's header does not match its checksum");
  }
  RecordHeader header{.kind = RecordKind{load<std::uint8_t>(in, kind_at)},
                      .segment = load<std::uint32_t>(in, segment_at),
                      .offset = load<std::uint32_t>(in, unit_at) * segment_unit_bytes,
                      .sequence = load<std::uint64_t>(in, sequence_at),
                      .payload_bytes = load<std::uint64_t>(in, payload_bytes_at),
                      .page = {},
                      .digest = {},
                      .covers = load<std::uint32_t>(in, covers_at),
                      .checked_bytes = load<std::uint64_t>(in, checked_bytes_at)};
  if (header.segment != segment.number || header.offset != offset) {
    return corrupt("the record belongs to another place: segment " +
                   std::to_string(header.segment) + ", byte " + std::to_string(header.offset));
  }
  if (header.kind > RecordKind::erased) return corrupt("the record is of an unknown kind");
  if (!is_possible_size(header)) return corrupt("the record has an impossible length");
  Bytes unused = in.subspan(subject_at + sizeof(Digest128), checksum_at - subject_at - 16);
  if (header.kind == RecordKind::page) {
    HEADRACE_TRY_ASSIGN(header.page, decode_sealed_page(in.subspan(subject_at, sealed_page_bytes)));
    unused = {};
  } else {
    header.digest = load_digest(in, subject_at);
  }
  const std::size_t checksums_end = checksums_at + 8 * header.checksum_count();
  if (!all_zero(in.subspan(kind_at + 1, 3)) || !all_zero(unused) ||
      !all_zero(in.subspan(covers_at + 4, subject_at - covers_at - 4)) ||
      !all_zero(in.subspan(checksums_end))) {
    return corrupt("the record's header has unused bytes that are not zero");
  }
  for (std::uint64_t i = 0; i < header.checksum_count(); ++i) {
    header.checksums[i] = load<std::uint64_t>(in, checksums_at + 8 * i);
  }
  return header;
}

void encode_erased(std::span<const ErasedEntry> entries, MutableBytes out) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const MutableBytes at = out.subspan(i * erased_entry_bytes, erased_entry_bytes);
    store(at, 0, entries[i].key.digest);
    store(at, 16, entries[i].sequence);
    store(at, 24, entries[i].key.layer);
    store(at, 28, std::uint32_t{static_cast<std::uint8_t>(entries[i].key.kind)});
  }
}

Result<std::vector<ErasedEntry>> decode_erased(Bytes in) {
  if (in.size() % erased_entry_bytes != 0) return corrupt("a list of erased records is cut short");
  std::vector<ErasedEntry> entries(in.size() / erased_entry_bytes);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Bytes at = in.subspan(i * erased_entry_bytes, erased_entry_bytes);
    const auto kind = load<std::uint32_t>(at, 28);
    if (kind >= static_cast<std::uint32_t>(RecordKind::erased)) {
      return corrupt("a list of erased records names an unknown kind");
    }
    entries[i] = {.key = {.kind = static_cast<RecordKind>(kind),
                          .layer = load<std::uint32_t>(at, 24),
                          .digest = load_digest(at, 0)},
                  .sequence = load<std::uint64_t>(at, 16)};
  }
  return entries;
}

std::string segment_name(std::uint32_t number) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "seg-%08x.hrs", number);
  return name.data();
}

std::optional<std::uint32_t> segment_number(const std::string& name) {
  constexpr std::size_t digits_at = 4, digits = 8;
  std::uint32_t number = 0;
  if (name.size() != digits_at + digits + 4) return std::nullopt;
  const char* start = name.data() + digits_at;
  const auto [end, error] = std::from_chars(start, start + digits, number, 16);
  if (error != std::errc() || segment_name(number) != name) return std::nullopt;
  return number;
}

}  // namespace headrace
