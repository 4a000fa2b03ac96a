// The codec of a precision map: each head of a page keeps what the map says. Format:
// docs/formats/codecs.md.
#pragma once

#include <memory>

#include "codec/codec.h"
#include "codec/precision_map.h"

namespace headrace {

/// Encodes pages of the layers and kv heads that `map` has. Its pages say themselves how they are
/// encoded, so that any of these codecs decodes those of another map.
std::unique_ptr<Codec> new_map_codec(PrecisionMap map);

}  // namespace headrace
