// The codec that keeps hidden states instead of keys and values, and computes a page anew when it
// is read (docs/decisions/0012-hidden-states.md).
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "codec/codec.h"
#include "model/hidden_rows.h"
#include "model/kv_projector.h"

namespace headrace {

/// "hidden-f32", "hidden-f16" and "hidden-q8"; nothing for other names.
std::optional<HiddenType> parse_hidden_codec(std::string_view name);

/// Of the projector's type; `projector` must outlive it.
std::unique_ptr<Codec> new_hidden_codec(KvProjector& projector);

}  // namespace headrace
