// The codecs, for codec.cc, which knows them all.
#pragma once

#include "codec/codec.h"

namespace headrace {

const Codec& lossless_codec();
const Codec& q8_codec();
const Codec& k8v4_codec();
const Codec& q4_codec();

}  // namespace headrace
