#include "cache/block_record.h"

#include "base/byte_stream.h"

namespace headrace {
namespace {

constexpr std::uint16_t record_version = 1;

}  // namespace

std::vector<std::byte> encode(const BlockRecord& record) {
  ByteWriter writer;
  writer.number(record_version).digest(record.settings).digest(record.parent);
  writer.number(record.first_position);
  writer.number(static_cast<std::uint32_t>(record.tokens.size()));
  for (const TokenId token : record.tokens) writer.number(static_cast<std::uint32_t>(token));
  writer.number(static_cast<std::uint32_t>(record.checksums.size()));
  for (const Digest128& checksum : record.checksums) writer.digest(checksum);
  return {writer.bytes().begin(), writer.bytes().end()};
}

Result<BlockRecord> decode_block_record(Bytes bytes) {
  ByteReader reader(bytes);
  BlockRecord record;
  if (reader.number<std::uint16_t>() != record_version) {
    return Error{ErrorCode::corrupt, "not a description of a block of this version"};
  }
  record.settings = reader.digest();
  record.parent = reader.digest();
  record.first_position = reader.number<std::uint32_t>();
  record.tokens.resize(reader.count(sizeof(std::uint32_t)));
  for (TokenId& token : record.tokens) token = static_cast<TokenId>(reader.number<std::uint32_t>());
  record.checksums.resize(reader.count(sizeof(Digest128)));
  for (Digest128& checksum : record.checksums) checksum = reader.digest();
  if (!reader.at_end()) {
    return Error{ErrorCode::corrupt, "the description of a block is cut short or too long"};
  }
  return record;
}

}  // namespace headrace
