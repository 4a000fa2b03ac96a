// What a stored page is: its name, and everything that must be equal for it to be the one that was
// asked for. The bytes of it stand in the header of a record (docs/formats/segment.md).
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
  raw = 0,        ///< the pool page in groups of tokens
  lossless = 1,   ///< entropy-coded
  q8 = 2,         ///< 8 bits a value
  k8v4 = 3,       ///< keys 8 bits, values 4
  q4 = 4,         ///< 4 bits a value
  map = 5,        ///< what a precision map says, head by head
  q8_delta = 18,  ///< those two, entropy-coded
  k8v4_delta = 19,
  // 20 was q4, entropy-coded.
  q4_delta = 21,  ///< levels as fine as the values need, entropy-coded
  // Hidden states that keys and values are computed from, of each token in f32, f16, or 8 bits with
  // an f32 scale for 32 values.
  hidden_f32 = 32,
  hidden_f16 = 33,
  hidden_q8 = 34,
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
  /// 1 to shape.tokens. The rows behind them are zero in the pool page.
  std::uint32_t tokens_held = shape.tokens;
  bool operator==(const PageIdentity&) const = default;
};

/// A page as its tier describes it.
struct SealedPage {
  PageIdentity identity;
  CodecId codec = CodecId::raw;
  Digest128 checksum;  ///< of the pool page
  bool operator==(const SealedPage&) const = default;
};

inline constexpr std::size_t sealed_page_bytes = 80;

/// Writes `page` into `out` (sealed_page_bytes). It must be a possible one.
void encode_sealed_page(const SealedPage& page, MutableBytes out);

/// Reads a page that is under a checksum already. Errors: corrupt (values that no page can have).
/// The codec may be one that this build does not know.
Result<SealedPage> decode_sealed_page(Bytes in);

/// Errors: corrupt (no page has this shape).
Result<void> check_page_shape(const PageShape& shape);

/// Errors: corrupt, naming the first field in which the stored page is another one.
Result<void> verify_identity(const PageIdentity& stored, const PageIdentity& wanted);

}  // namespace headrace
