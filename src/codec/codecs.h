// The codecs, for codec.cc, which knows them all.
#pragma once

#include <cstddef>

#include "codec/codec.h"

namespace headrace {

/// The first byte of what the entropy-coding ones store: whether it was worth it.
inline constexpr std::byte stored_raw{0};
inline constexpr std::byte stored_coded{1};

const Codec& lossless_codec();
const Codec& q8_codec();
const Codec& k8v4_codec();
const Codec& q4_codec();
const Codec& q8_delta_codec();
const Codec& k8v4_delta_codec();
const Codec& q4_delta_codec();
/// Decodes what the codec of any precision map has encoded. Encodes nothing.
const Codec& any_map_codec();

}  // namespace headrace
