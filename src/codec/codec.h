// Codec: how a page of the pool becomes bytes to store, and back. What each codec stores is in
// docs/formats/codecs.md; its number is part of the formats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "codec/sealed_page.h"
#include "headrace/result.h"
#include "page/shape.h"

namespace headrace {

/// What a codec may know about the page that it encodes.
struct PagePlan {
  PageShape shape;
  std::uint32_t tokens_held = 0;  ///< 1 to shape.tokens; the rows behind them are zero
  std::uint32_t layer = 0;
  std::uint32_t layers = 0;  ///< of the model
  std::uint32_t first_position = 0;
};

/// Thread-safe. What a page becomes depends on the arguments alone.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  /// Bytes of a token's hidden state, where those are kept instead of the page that comes of them;
  /// 0: pages are encoded. Then encode() takes the rows of all tokens, one after the other, and
  /// decode() computes the page.
  virtual std::uint32_t hidden_row_bytes() const { return 0; }
  /// Whether decode() gives the page that there was before.
  virtual bool is_lossless() const = 0;
  /// What encode() depends on besides its arguments; zero: nothing. Part of what names a page.
  virtual Digest128 settings() const { return {}; }
  /// The most that a page of this shape takes.
  virtual std::uint64_t encoded_bytes_max(const PageShape& shape) const = 0;
  /// Encodes a pool page into the front of `out` (at least encoded_bytes_max) and returns how many
  /// bytes it took.
  virtual std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const = 0;
  /// Fills a whole pool page. Errors: corrupt.
  virtual Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const = 0;
  /// Bytes of what is kept of 8 tokens (group_layout.h), where decode_group() can have them alone;
  /// 0: a page is decoded as a whole.
  virtual std::uint64_t encoded_group_bytes(const PageShape& /*shape*/) const { return 0; }
  /// Turns what is kept of one group, encoded_group_bytes(), into group_bytes() of group_layout.h.
  /// Errors: corrupt.
  virtual Result<void> decode_group(const PagePlan& plan, std::uint32_t group, Bytes encoded,
                                    MutableBytes out) const;
};

/// What keeps a page of the pool bit for bit, where there is nothing but the page: `codec` itself
/// if it can.
const Codec& exact_codec(const Codec& codec);

/// The pool page in groups of tokens (group_layout.h).
const Codec& raw_codec();

/// nullptr: this build does not know it.
const Codec* find_codec(CodecId id);

/// By its name on the command line; those of a precision map and of hidden states, which need a
/// file and a model, are opened otherwise (codec/map_codec.h, runtime/hidden_codec.h).
/// Errors: invalid_argument, with the names that there are.
Result<const Codec*> find_codec(std::string_view name);

/// Whether it makes pages smaller than they are in the pool: what is 8 bits already only becomes
/// smaller with fewer.
bool makes_smaller(const Codec& codec, const PageShape& shape);

/// The name of a codec on the command line.
const char* to_string(CodecId id);

/// "raw, lossless, ...": the names that there are.
std::string codec_names();

}  // namespace headrace
