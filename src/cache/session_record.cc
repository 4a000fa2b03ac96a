#include "cache/session_record.h"

#include <algorithm>
#include <cctype>

#include "base/byte_stream.h"

namespace headrace {
namespace {

constexpr std::uint16_t record_version = 1;
constexpr std::size_t name_most = 64;

}  // namespace

std::vector<std::byte> encode(const SessionRecord& record) {
  ByteWriter writer;
  writer.number(record_version);
  writer.text(record.name).text(record.tenant).text(record.note).text(record.model_name);
  writer.digest(record.model).number(record.layers);
  writer.number(record.shape.tokens).number(record.shape.kv_heads).number(record.shape.head_dim);
  writer.number(static_cast<std::uint8_t>(record.shape.type));
  writer.number(record.created_seconds).number(record.saved_seconds);
  writer.number(static_cast<std::uint32_t>(record.tokens.size()));
  for (const TokenId token : record.tokens) writer.number(static_cast<std::uint32_t>(token));
  writer.number(static_cast<std::uint32_t>(record.blocks.size()));
  for (const Digest128& block : record.blocks) writer.digest(block);
  return {writer.bytes().begin(), writer.bytes().end()};
}

Result<SessionRecord> decode_session_record(Bytes bytes) {
  ByteReader reader(bytes);
  SessionRecord record;
  if (reader.number<std::uint16_t>() != record_version) {
    return Error{ErrorCode::corrupt, "not a session of this version"};
  }
  record.name = reader.text();
  record.tenant = reader.text();
  record.note = reader.text();
  record.model_name = reader.text();
  record.model = reader.digest();
  record.layers = reader.number<std::uint32_t>();
  record.shape.tokens = reader.number<std::uint32_t>();
  record.shape.kv_heads = reader.number<std::uint32_t>();
  record.shape.head_dim = reader.number<std::uint32_t>();
  record.shape.type = KvType{reader.number<std::uint8_t>()};
  record.created_seconds = reader.number<std::uint64_t>();
  record.saved_seconds = reader.number<std::uint64_t>();
  record.tokens.resize(reader.count(sizeof(std::uint32_t)));
  for (TokenId& token : record.tokens) token = static_cast<TokenId>(reader.number<std::uint32_t>());
  record.blocks.resize(reader.count(sizeof(Digest128)));
  for (Digest128& block : record.blocks) block = reader.digest();
  if (!reader.at_end() || !check_session_name(record.name).ok()) {
    return Error{ErrorCode::corrupt, "the record of a session is damaged"};
  }
  return record;
}

Result<void> check_session_name(const std::string& name) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  };
  if (!name.empty() && name.size() <= name_most && std::ranges::all_of(name, allowed)) return {};
  return Error{ErrorCode::invalid_argument,
               "a session is named by 1 to " + std::to_string(name_most) +
                   " letters, digits, '-' and '_', for example --session monday"};
}

Digest128 session_key(const std::string& name) {
  return hash_bytes(std::as_bytes(std::span(name)));
}

}  // namespace headrace
