// The header that stands before a page's bytes on disk and on the wire: what the page is, and how
// to tell that it is undamaged. Format, grammar and a worked example: docs/formats/page.md.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/hash.h"
#include "headrace/result.h"
#include "page/shape.h"

namespace headrace {

/// How the payload is encoded. The values are part of the format: never renumber.
enum class CodecId : std::uint16_t {
  raw = 0,  ///< the pool layout, byte for byte
};

/// Names one page in every tier: a block and a layer of it.
struct PageKey {
  Digest128 block;  ///< chained: model, settings, all tokens up to the end of the block
  std::uint32_t layer = 0;
  auto operator<=>(const PageKey&) const = default;
};

/// Everything that must be equal for a stored page to be the one that was asked for.
struct PageIdentity {
  PageKey key;
  Digest128 model;  ///< digest of the model file
  std::uint32_t first_position = 0;
  PageShape shape;
  bool operator==(const PageIdentity&) const = default;
};

/// The parsed header.
struct SealedPageHeader {
  PageIdentity identity;
  CodecId codec = CodecId::raw;
  std::uint64_t payload_bytes = 0;
  Digest128 payload_checksum;
};

/// The header takes one device block, so that the payload behind it is aligned.
inline constexpr std::size_t sealed_page_header_bytes = 4096;

/// Writes `header` into `out` (sealed_page_header_bytes), unused bytes zero, with its own checksum.
void encode_sealed_page_header(const SealedPageHeader& header, MutableBytes out);

/// Reads and verifies a header. Errors: corrupt (magic, version, length, checksum, impossible field
/// values).
Result<SealedPageHeader> decode_sealed_page_header(Bytes in);

/// Checks that a stored page (header as read, payload as read) is exactly what was asked for.
/// Errors: corrupt, naming the first field that differs: identity, length or checksum.
Result<void> verify_sealed_page(const SealedPageHeader& header, Bytes payload,
                                const PageIdentity& expected, const Digest128& expected_checksum);

}  // namespace headrace
