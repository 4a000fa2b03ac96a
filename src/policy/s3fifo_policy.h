// S3-FIFO (Yang and others, SOSP 2023): a small queue that new blocks pass quickly, a main one for
// those that were used again, and a memory of those that left too early.
#pragma once

#include <memory>

#include "policy/cache_policy.h"

namespace headrace {

std::unique_ptr<CachePolicy> new_s3fifo_policy(std::size_t capacity_blocks);

}  // namespace headrace
