#include "codec/sealed_page.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/little_endian.h"

namespace headrace {
namespace {

// Offsets of the fields, all little-endian. docs/formats/segment.md is the other copy of this
// table.
constexpr std::size_t block_at = 0;
constexpr std::size_t model_at = 16;
constexpr std::size_t layer_at = 32;
constexpr std::size_t first_position_at = 36;
constexpr std::size_t tokens_at = 40;
constexpr std::size_t tokens_held_at = 44;
constexpr std::size_t kv_heads_at = 48;
constexpr std::size_t head_dim_at = 52;
constexpr std::size_t type_at = 56;
constexpr std::size_t unused_at = 57;
constexpr std::size_t codec_at = 58;
constexpr std::size_t unused_bytes_at = 60;
constexpr std::size_t checksum_at = 64;

// Larger values are damage, not models. They also keep every size below far from overflow.
constexpr std::uint32_t layers_max = 65'536;
constexpr std::uint32_t kv_heads_max = 1024;
constexpr std::uint32_t head_dim_max = 1024;
constexpr std::uint32_t positions_max = 0x8000'0000;

Error corrupt(std::string message) { return {ErrorCode::corrupt, std::move(message)}; }

/// Name of the first field whose value no page can have, or nullptr.
const char* impossible_field(const PageIdentity& identity) {
  const PageShape& shape = identity.shape;
  if (std::ranges::find(kv_types, shape.type) == std::end(kv_types)) return "KV type";
  if (shape.tokens == 0 || shape.tokens > tokens_per_block_max || shape.tokens % tile_tokens != 0) {
    return "number of tokens";
  }
  if (shape.kv_heads == 0 || shape.kv_heads > kv_heads_max) return "number of kv heads";
  const std::uint32_t dims = shape.type == KvType::q8 ? 32 : 16;
  if (shape.head_dim == 0 || shape.head_dim > head_dim_max || shape.head_dim % dims != 0) {
    return "head dimension";
  }
  if (identity.key.layer >= layers_max) return "layer";
  // Blocks follow each other from position 0, so a page starts at a multiple of its size.
  const std::uint32_t first_position = identity.first_position;
  if (first_position % shape.tokens != 0 || first_position > positions_max - shape.tokens) {
    return "first position";
  }
  if (identity.tokens_held == 0 || identity.tokens_held > shape.tokens) {
    return "number of tokens held";
  }
  return nullptr;
}

template <typename T>
Error other_value(const char* field, T stored, T wanted) {
  return corrupt("the stored page has another " + std::string(field) + ": " +
                 std::to_string(stored) + " instead of " + std::to_string(wanted));
}

Error other_digest(const char* field, const Digest128& stored, const Digest128& wanted) {
  return corrupt("the stored page has another " + std::string(field) + ": " + to_hex(stored) +
                 " instead of " + to_hex(wanted));
}

}  // namespace

Result<void> check_page_shape(const PageShape& shape) {
  PageIdentity identity;
  identity.shape = shape;
  identity.tokens_held = shape.tokens;
  const char* const field = impossible_field(identity);
  if (field == nullptr) return {};
  return corrupt("no page has this " + std::string(field));
}

void encode_sealed_page(const SealedPage& page, MutableBytes out) {
  const PageIdentity& identity = page.identity;
  HEADRACE_CHECK(out.size() == sealed_page_bytes, "a page's fields have a fixed size");
  HEADRACE_CHECK(impossible_field(identity) == nullptr, "only a possible page is sealed");
  std::ranges::fill(out, std::byte{0});
  store(out, block_at, identity.key.block);
  store(out, model_at, identity.model);
  store(out, layer_at, identity.key.layer);
  store(out, first_position_at, identity.first_position);
  store(out, tokens_at, identity.shape.tokens);
  store(out, tokens_held_at, identity.tokens_held);
  store(out, kv_heads_at, identity.shape.kv_heads);
  store(out, head_dim_at, identity.shape.head_dim);
  store(out, type_at, static_cast<std::uint8_t>(identity.shape.type));
  store(out, codec_at, static_cast<std::uint16_t>(page.codec));
  store(out, checksum_at, page.checksum);
}

Result<SealedPage> decode_sealed_page(Bytes in) {
  HEADRACE_CHECK(in.size() == sealed_page_bytes, "a page's fields have a fixed size");
  if (load<std::uint8_t>(in, unused_at) != 0 || load<std::uint32_t>(in, unused_bytes_at) != 0) {
    return corrupt("the page has unused bytes that are not zero");
  }
  SealedPage page{
      .identity = {.key = {.block = load_digest(in, block_at),
                           .layer = load<std::uint32_t>(in, layer_at)},
                   .model = load_digest(in, model_at),
                   .first_position = load<std::uint32_t>(in, first_position_at),
                   .shape = {.tokens = load<std::uint32_t>(in, tokens_at),
                             .kv_heads = load<std::uint32_t>(in, kv_heads_at),
                             .head_dim = load<std::uint32_t>(in, head_dim_at),
                             .type = KvType{load<std::uint8_t>(in, type_at)}},
                   .tokens_held = load<std::uint32_t>(in, tokens_held_at)},
      .codec = CodecId{load<std::uint16_t>(in, codec_at)},
      .checksum = load_digest(in, checksum_at),
  };
  if (const char* field = impossible_field(page.identity); field != nullptr) {
    return corrupt("the page has an impossible " + std::string(field));
  }
  return page;
}

Result<void> verify_identity(const PageIdentity& stored, const PageIdentity& wanted) {
  if (stored.model != wanted.model) return other_digest("model", stored.model, wanted.model);
  if (stored.key.block != wanted.key.block) {
    return other_digest("block", stored.key.block, wanted.key.block);
  }
  if (stored.key.layer != wanted.key.layer) {
    return other_value("layer", stored.key.layer, wanted.key.layer);
  }
  if (stored.first_position != wanted.first_position) {
    return other_value("first position", stored.first_position, wanted.first_position);
  }
  if (stored.shape.tokens != wanted.shape.tokens) {
    return other_value("number of tokens", stored.shape.tokens, wanted.shape.tokens);
  }
  if (stored.shape.kv_heads != wanted.shape.kv_heads) {
    return other_value("number of kv heads", stored.shape.kv_heads, wanted.shape.kv_heads);
  }
  if (stored.shape.head_dim != wanted.shape.head_dim) {
    return other_value("head dimension", stored.shape.head_dim, wanted.shape.head_dim);
  }
  if (stored.shape.type != wanted.shape.type) {
    return corrupt(std::string("the stored page has another KV type: ") +
                   to_string(stored.shape.type) + " instead of " + to_string(wanted.shape.type));
  }
  if (stored.tokens_held != wanted.tokens_held) {
    return other_value("number of tokens held", stored.tokens_held, wanted.tokens_held);
  }
  HEADRACE_CHECK(stored == wanted, "every field of a page's identity is compared by name");
  return {};
}

}  // namespace headrace
