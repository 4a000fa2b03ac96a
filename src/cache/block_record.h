// What the disk tier keeps of a block besides its pages, so that a later process can use them:
// docs/formats/records.md.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/result.h"
#include "page/block.h"

namespace headrace {

struct BlockRecord {
  Digest128 settings;  ///< BlockIndexOptions::settings
  Digest128 parent;    ///< key of the block before, or of the root
  std::uint32_t first_position = 0;
  std::vector<TokenId> tokens;
  std::vector<Digest128> checksums;  ///< of the pages, [layer]

  bool operator==(const BlockRecord&) const = default;
};

std::vector<std::byte> encode(const BlockRecord& record);
/// Errors: corrupt.
Result<BlockRecord> decode_block_record(Bytes bytes);

}  // namespace headrace
