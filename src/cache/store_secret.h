// The secret of a directory: what the keys of its blocks are hashed with (index/keyed_hash.h). It
// lies among the records, so who can read the directory can tell which texts it holds, and nobody
// else.
#pragma once

#include "env/env.h"
#include "index/keyed_hash.h"
#include "tier/disk_tier.h"

namespace headrace {

HashSecret new_secret(Env& env);

/// The secret of the directory of `tier`; a new one if it has none. Nothing may be in flight.
/// Errors: io, out_of_budget.
Result<HashSecret> store_secret(Env& env, DiskTier& tier);

}  // namespace headrace
