// Lets other policies compete in shadow caches and does what the best of them says.
#pragma once

#include <memory>

#include "policy/cache_policy.h"

namespace headrace {

std::unique_ptr<CachePolicy> new_automatic_policy(std::size_t capacity_blocks);

}  // namespace headrace
