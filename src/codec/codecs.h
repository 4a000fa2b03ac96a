// The codecs, for codec.cc, which knows them all.
#pragma once

#include "codec/codec.h"

namespace headrace {

const Codec& lossless_codec();

}  // namespace headrace
