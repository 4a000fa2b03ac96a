// The state of a sequence: digests of the keys and values of every page, from the bytes themselves,
// wherever they are. Outputs alone do not show a page that is wrong and hardly matters.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "page/shape.h"
#include "runtime/sequence.h"

namespace headrace::test {

/// By block and layer.
using SequenceState = std::map<std::pair<std::uint32_t, std::uint32_t>, Digest128>;

/// Waits for pages that are on disk.
inline SequenceState state_of(Sequence& sequence) {
  SequenceCache& cache = static_cast<RuntimeSequence&>(sequence).cache();
  PageStore& store = cache.store();
  const auto tokens = static_cast<std::uint32_t>(cache.tokens().size());
  SequenceState state;
  for (std::uint32_t i = 0; i < cache.table().blocks(); ++i) {
    Block& block = cache.table().block(i);
    for (std::uint32_t layer = 0; layer < cache.table().layers(); ++layer) {
      if (i < store.options().first_block(layer, tokens)) continue;  // behind the window
      const std::optional<SlotIndex> slot = store.pool().acquire();
      if (!slot) {
        ADD_FAILURE() << "there is no slot to audit with";
        return state;
      }
      const MutableBytes bytes = store.pool().bytes(*slot);
      bool has_bytes = block.pages[layer].slot.has_value();
      if (has_bytes) {
        std::ranges::copy(store.pool().bytes(*block.pages[layer].slot), bytes.begin());
      } else {
        bool finished = false;
        const auto done = [&](Result<void> outcome) {
          finished = true;
          has_bytes = outcome.ok();
        };
        while (!store.start_load(block, layer, *slot, done) && !finished) store.wait();
        while (!finished) store.wait();
      }
      EXPECT_TRUE(has_bytes) << "the page of block " << i << ", layer " << layer << " is nowhere";
      if (!block.sealed) {
        clear_tokens(cache.shape(), tokens - block.first_position, bytes);
      } else {
        EXPECT_EQ(hash_bytes(bytes), block.pages[layer].checksum);
      }
      state[{i, layer}] = hash_bytes(bytes);
      store.pool().release(*slot);
    }
  }
  return state;
}

inline void expect_same_state(const SequenceState& expected, const SequenceState& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [place, digest] : expected) {
    const auto other = actual.find(place);
    ASSERT_TRUE(other != actual.end()) << "block " << place.first << ", layer " << place.second;
    EXPECT_EQ(other->second, digest)
        << "K and V of block " << place.first << ", layer " << place.second << " are wrong";
  }
}

}  // namespace headrace::test
