// Makes the tokens of a page zero from one on: what a page holds of rows that were written and not
// kept must not be part of its bytes when it is sealed.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "page/shape.h"

namespace headrace {

/// `page` is shape.bytes() in the layout of shape.h.
void clear_tokens(const PageShape& shape, std::uint32_t first_token, MutableBytes page);

}  // namespace headrace
