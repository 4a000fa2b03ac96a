// Keyed hashes that name blocks: BLAKE2b with 128 bits. Who does not know the secret can neither
// foresee the key of a text nor make two texts share one.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/hash.h"

namespace headrace {

/// Keep it to oneself: whoever has it can tell which texts a store holds.
using HashSecret = std::array<std::byte, 32>;

/// The hash of several fields in a row, each framed by its length, so ("ab","c") and ("a","bc")
/// differ.
Digest128 keyed_hash(const HashSecret& secret, std::span<const Bytes> fields);

}  // namespace headrace
