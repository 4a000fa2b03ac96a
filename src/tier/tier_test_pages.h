// Pages and a blocking client for the tests of tiers.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "codec/group_layout.h"
#include "tier/tier.h"

namespace headrace {

struct TestPage {
  PageIdentity identity;
  Digest128 checksum;
  std::vector<std::byte> bytes;
};

/// 1 KiB of payload: not a multiple of the slot's rounding, and quick.
inline constexpr PageShape small_shape = {
    .tokens = 16, .kv_heads = 1, .head_dim = 16, .type = KvType::f16};

/// The page with this number: always the same, and different from all others.
inline TestPage test_page(std::uint32_t number, const PageShape& shape = small_shape) {
  TestPage page{.identity = {.key = {.block = {.low = number / 4, .high = ~std::uint64_t{number}},
                                     .layer = number % 4},
                             .model = {.low = 1, .high = 2},
                             .first_position = number / 4 * shape.tokens,
                             .shape = shape},
                .checksum = {},
                .bytes = std::vector<std::byte>(shape.bytes())};
  std::mt19937 random(number);
  for (std::byte& byte : page.bytes) byte = static_cast<std::byte>(random());
  page.checksum = hash_bytes(page.bytes);
  return page;
}

/// A page with fewer tokens than it has room for.
inline TestPage tail_page(std::uint32_t number, std::uint32_t tokens_held,
                          const PageShape& shape = small_shape) {
  TestPage page = test_page(number, shape);
  page.identity.tokens_held = tokens_held;
  // The groups without tokens, by way of the layout: a row of its own in the last group may be
  // anything that the cache wrote there.
  std::vector<std::byte> groups(grouped_bytes(shape, tokens_held));
  encode_groups(shape, tokens_held, page.bytes, groups);
  decode_groups(shape, tokens_held, groups, page.bytes);
  page.checksum = hash_bytes(page.bytes);
  return page;
}

/// A target that never holds the right bytes by chance.
inline std::vector<std::byte> empty_target(const PageShape& shape = small_shape) {
  return std::vector<std::byte>(shape.bytes(), std::byte{0xEE});
}

/// Waits for chosen tickets of a tier, and keeps the other completions for later calls.
class TierClient {
 public:
  explicit TierClient(Tier& tier) : tier_(tier) {}

  /// Polls until `ticket` has completed and returns its result.
  Result<void> finish(TierTicket ticket) {
    while (!results_.contains(ticket)) {
      tier_.wait();
      poll();
    }
    return take(ticket);
  }

  /// Takes what has completed so far.
  void poll() {
    std::array<TierCompletion, 3> completions;
    while (const std::size_t count = tier_.poll(completions)) {
      for (std::size_t i = 0; i < count; ++i) {
        TierCompletion& completion = completions[i];
        const auto added = results_.emplace(completion.ticket, std::move(completion.result));
        EXPECT_TRUE(added.second) << "ticket " << completion.ticket << " completed twice";
      }
    }
  }

  bool has(TierTicket ticket) const { return results_.contains(ticket); }

  Result<void> take(TierTicket ticket) {
    const auto entry = results_.find(ticket);
    EXPECT_NE(entry, results_.end()) << "ticket " << ticket << " has not completed";
    if (entry == results_.end()) return Error{ErrorCode::internal, "not completed"};
    Result<void> result = std::move(entry->second);
    results_.erase(entry);
    return result;
  }

  std::size_t untaken() const { return results_.size(); }

  Result<void> put(const TestPage& page) {
    HEADRACE_TRY_ASSIGN(const TierTicket ticket,
                        tier_.submit_put(page.identity, page.checksum, page.bytes));
    return finish(ticket);
  }

  /// Also checks that the bytes are right whenever the tier says so.
  Result<void> get(const TestPage& page) {
    std::vector<std::byte> target = empty_target(page.identity.shape);
    HEADRACE_TRY_ASSIGN(const TierTicket ticket,
                        tier_.submit_get(page.identity, page.checksum, target));
    HEADRACE_TRY(finish(ticket));
    EXPECT_EQ(target, page.bytes) << "a tier handed out wrong bytes";
    return {};
  }

 private:
  Tier& tier_;
  std::map<TierTicket, Result<void>> results_;
};

/// For EXPECT_EQ on outcomes: "ok" or the name of the code.
inline std::string outcome(const Result<void>& result) {
  return result.ok() ? "ok" : to_string(result.error().code);
}

}  // namespace headrace
