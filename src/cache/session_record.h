// A conversation as the disk tier keeps it: docs/formats/records.md. Its tokens are all that it
// needs; the blocks of these tokens make it quick.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "headrace/result.h"
#include "headrace/types.h"
#include "page/shape.h"

namespace headrace {

struct SessionRecord {
  std::string name;
  std::string tenant;
  std::string note;        ///< of the front end
  std::string model_name;  ///< for people
  Digest128 model;         ///< of the model file
  std::uint32_t layers = 0;
  PageShape shape;
  std::uint64_t created_seconds = 0;  ///< since 1970
  std::uint64_t saved_seconds = 0;
  std::vector<TokenId> tokens;
  std::vector<Digest128> blocks;  ///< keys of the blocks that hold the tokens, the tail's last

  bool operator==(const SessionRecord&) const = default;
};

std::vector<std::byte> encode(const SessionRecord& record);
/// Errors: corrupt.
Result<SessionRecord> decode_session_record(Bytes bytes);

/// Names are 1 to 64 letters, digits, '-' and '_'. Errors: invalid_argument.
Result<void> check_session_name(const std::string& name);
/// The key that the record of a session has in the tier.
Digest128 session_key(const std::string& name);

}  // namespace headrace
