#include "codec/sealed_page.h"

#include <algorithm>
#include <concepts>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"

namespace headrace {
namespace {

// "HRPAGE\r\n": the line end shows a copy that went through a text conversion.
constexpr std::uint64_t magic = 0x0A0D'4547'4150'5248;
constexpr std::uint32_t format_version = 1;

// Offsets of the fields, all little-endian. docs/formats/page.md is the other copy of this table.
constexpr std::size_t magic_at = 0;
constexpr std::size_t version_at = 8;
constexpr std::size_t header_bytes_at = 12;
constexpr std::size_t block_at = 16;
constexpr std::size_t model_at = 32;
constexpr std::size_t layer_at = 48;
constexpr std::size_t first_position_at = 52;
constexpr std::size_t tokens_at = 56;
constexpr std::size_t kv_heads_at = 60;
constexpr std::size_t head_dim_at = 64;
constexpr std::size_t type_at = 68;
constexpr std::size_t reserved_at = 69;
constexpr std::size_t codec_at = 70;
constexpr std::size_t payload_bytes_at = 72;
constexpr std::size_t payload_checksum_at = 80;
constexpr std::size_t header_checksum_at = 96;  // of the bytes before it
constexpr std::size_t unused_at = 112;          // zeros up to sealed_page_header_bytes

// Larger values are damage, not models. They also keep every size below far from overflow.
constexpr std::uint32_t layers_max = 65'536;
constexpr std::uint32_t tokens_max = 4096;
constexpr std::uint32_t kv_heads_max = 1024;
constexpr std::uint32_t head_dim_max = 1024;
constexpr std::uint32_t positions_max = 0x8000'0000;

template <std::unsigned_integral T>
void store(MutableBytes out, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out[offset + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

void store(MutableBytes out, std::size_t offset, const Digest128& value) {
  store(out, offset, value.low);
  store(out, offset + 8, value.high);
}

template <std::unsigned_integral T>
T load(Bytes in, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(in[offset + i]) << (8 * i);
  }
  return static_cast<T>(value);
}

Digest128 load_digest(Bytes in, std::size_t offset) {
  return {.low = load<std::uint64_t>(in, offset), .high = load<std::uint64_t>(in, offset + 8)};
}

Error corrupt(std::string message) { return {ErrorCode::corrupt, std::move(message)}; }

/// Name of the first field whose value no page can have, or nullptr.
const char* impossible_field(const SealedPageHeader& header) {
  const PageShape& shape = header.identity.shape;
  if (std::ranges::find(kv_types, shape.type) == std::end(kv_types)) return "KV type";
  if (shape.tokens == 0 || shape.tokens > tokens_max || shape.tokens % tile_tokens != 0) {
    return "number of tokens";
  }
  if (shape.kv_heads == 0 || shape.kv_heads > kv_heads_max) return "number of kv heads";
  const std::uint32_t dims = shape.type == KvType::q8 ? 32 : 16;
  if (shape.head_dim == 0 || shape.head_dim > head_dim_max || shape.head_dim % dims != 0) {
    return "head dimension";
  }
  if (header.identity.key.layer >= layers_max) return "layer";
  // Blocks follow each other from position 0, so a page starts at a multiple of its size.
  const std::uint32_t first_position = header.identity.first_position;
  if (first_position % shape.tokens != 0 || first_position > positions_max - shape.tokens) {
    return "first position";
  }
  if (header.codec != CodecId::raw) return "codec";
  if (header.payload_bytes != shape.bytes()) return "payload length";
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
  HEADRACE_CHECK(stored == wanted, "every field of a page's identity is compared by name");
  return {};
}

}  // namespace

void encode_sealed_page_header(const SealedPageHeader& header, MutableBytes out) {
  HEADRACE_CHECK(out.size() == sealed_page_header_bytes, "a header has a fixed size");
  HEADRACE_CHECK(impossible_field(header) == nullptr, "only a possible page is sealed");
  const PageIdentity& identity = header.identity;
  std::ranges::fill(out, std::byte{0});
  store(out, magic_at, magic);
  store(out, version_at, format_version);
  store(out, header_bytes_at, static_cast<std::uint32_t>(sealed_page_header_bytes));
  store(out, block_at, identity.key.block);
  store(out, model_at, identity.model);
  store(out, layer_at, identity.key.layer);
  store(out, first_position_at, identity.first_position);
  store(out, tokens_at, identity.shape.tokens);
  store(out, kv_heads_at, identity.shape.kv_heads);
  store(out, head_dim_at, identity.shape.head_dim);
  store(out, type_at, static_cast<std::uint8_t>(identity.shape.type));
  store(out, codec_at, static_cast<std::uint16_t>(header.codec));
  store(out, payload_bytes_at, header.payload_bytes);
  store(out, payload_checksum_at, header.payload_checksum);
  store(out, header_checksum_at, hash_bytes(out.first(header_checksum_at)));
}

Result<SealedPageHeader> decode_sealed_page_header(Bytes in) {
  if (in.size() != sealed_page_header_bytes) {
    return corrupt("the page header is cut short: " + std::to_string(in.size()) + " of " +
                   std::to_string(sealed_page_header_bytes) + " bytes");
  }
  // Magic and version first: they say that this is not damage but something else.
  if (load<std::uint64_t>(in, magic_at) != magic) return corrupt("not a sealed page");
  if (const auto version = load<std::uint32_t>(in, version_at); version != format_version) {
    return corrupt("the page has format version " + std::to_string(version) +
                   ", this build reads version " + std::to_string(format_version));
  }
  if (load_digest(in, header_checksum_at) != hash_bytes(in.first(header_checksum_at))) {
    return corrupt("the page header does not match its checksum");
  }
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (load<std::uint32_t>(in, header_bytes_at) != sealed_page_header_bytes ||
      !is_zero(in[reserved_at]) || !std::ranges::all_of(in.subspan(unused_at), is_zero)) {
    return corrupt("the page header has unused bytes that are not zero, or another length");
  }
  SealedPageHeader header{
      .identity = {.key = {.block = load_digest(in, block_at),
                           .layer = load<std::uint32_t>(in, layer_at)},
                   .model = load_digest(in, model_at),
                   .first_position = load<std::uint32_t>(in, first_position_at),
                   .shape = {.tokens = load<std::uint32_t>(in, tokens_at),
                             .kv_heads = load<std::uint32_t>(in, kv_heads_at),
                             .head_dim = load<std::uint32_t>(in, head_dim_at),
                             .type = KvType{load<std::uint8_t>(in, type_at)}}},
      .codec = CodecId{load<std::uint16_t>(in, codec_at)},
      .payload_bytes = load<std::uint64_t>(in, payload_bytes_at),
      .payload_checksum = load_digest(in, payload_checksum_at),
  };
  if (const char* field = impossible_field(header); field != nullptr) {
    return corrupt("the page header has an impossible " + std::string(field));
  }
  return header;
}

Result<void> verify_sealed_page(const SealedPageHeader& header, Bytes payload,
                                const PageIdentity& expected, const Digest128& expected_checksum) {
  HEADRACE_TRY(verify_identity(header.identity, expected));
  if (header.codec != CodecId::raw) {
    return other_value("codec", static_cast<std::uint32_t>(header.codec),
                       static_cast<std::uint32_t>(CodecId::raw));
  }
  if (header.payload_bytes != expected.shape.bytes()) {
    return other_value("payload length", header.payload_bytes, expected.shape.bytes());
  }
  if (payload.size() != header.payload_bytes) {
    return corrupt("the stored page is cut short: " + std::to_string(payload.size()) + " of " +
                   std::to_string(header.payload_bytes) + " bytes");
  }
  if (header.payload_checksum != expected_checksum) {
    return other_digest("checksum", header.payload_checksum, expected_checksum);
  }
  if (const Digest128 actual = hash_bytes(payload); actual != expected_checksum) {
    return corrupt("the stored page does not match its checksum: " + to_hex(actual) +
                   " instead of " + to_hex(expected_checksum));
  }
  return {};
}

}  // namespace headrace
