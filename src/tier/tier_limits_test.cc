#include "tier/tier_limits.h"

#include <gtest/gtest.h>

#include "env/scratch_directory.h"
#include "tier/disk_tier.h"
#include "tier/tier_test_pages.h"

namespace headrace {
namespace {

constexpr PageShape shape = {.tokens = 64, .kv_heads = 2, .head_dim = 64, .type = KvType::i16};

void store_pages(Env& env, const std::string& directory, std::uint32_t count) {
  auto tier = open_disk_tier(env, {.directory = directory,
                                   .limit_bytes = 64U << 20U,
                                   .shape = shape,
                                   .layers = 4,
                                   .keep = true});
  ASSERT_TRUE(tier.ok()) << tier.error().message;
  for (std::uint32_t number = 0; number < count; ++number) {
    const TestPage page = test_page(number, shape);
    ASSERT_TRUE((*tier)->submit_put(page.identity, page.checksum, page.bytes).ok());
    std::array<TierCompletion, 1> done;
    while ((*tier)->poll(done) == 0) (*tier)->wait();
    ASSERT_TRUE(done[0].result.ok());
  }
}

TEST(TierLimits, AreMeasuredWithThePagesThatAreThere) {
  Env& env = posix_env();
  const ScratchDirectory scratch = ScratchDirectory::create(env).value();
  store_pages(env, scratch.path(), 6);
  const auto limits = measure_tier_limits(env, scratch.path(), 64U << 20U);
  ASSERT_TRUE(limits.ok()) << limits.error().message;
  EXPECT_EQ(limits->pages, 6U);
  EXPECT_GT(limits->buffered_read, 1e6);
  EXPECT_GT(limits->raw_decode, 1e6);
  EXPECT_GT(limits->lossless_decode, 1e4);
  EXPECT_GT(limits->lossless_ratio, 0.5);  // of random bytes
}

TEST(TierLimits, ReadNoMorePagesThanTold) {
  Env& env = posix_env();
  const ScratchDirectory scratch = ScratchDirectory::create(env).value();
  store_pages(env, scratch.path(), 6);
  const auto limits = measure_tier_limits(env, scratch.path(), 2 * shape.bytes());
  ASSERT_TRUE(limits.ok()) << limits.error().message;
  EXPECT_LT(limits->pages, 4U);
}

TEST(TierLimits, NeedPages) {
  Env& env = posix_env();
  const ScratchDirectory scratch = ScratchDirectory::create(env).value();
  const auto limits = measure_tier_limits(env, scratch.path(), 1U << 20U);
  ASSERT_FALSE(limits.ok());
  EXPECT_EQ(limits.error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace headrace
