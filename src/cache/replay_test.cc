#include "cache/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "env/fault_env.h"

namespace headrace {
namespace {

constexpr std::uint32_t layers = 3;
constexpr std::uint32_t stored_blocks = 4;

/// A sequence of four sealed blocks, none of which is resident in the next step.
class ReplayTest : public testing::Test {
 protected:
  void SetUp() override {
    while (reader_.position() < 64) {
      const auto outcome = reader_.read(std::min<std::size_t>(7, 64 - reader_.position()));
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    }
  }

  SequenceCache& sequence() { return reader_.sequence(); }

  /// A step in which the k-th read of a page (layer by layer, block by block) finds a flipped bit.
  Result<FakeOutputs> step_with_damage(std::uint64_t k) {
    const std::uint64_t bit = (segment_unit_bytes + k * 17) * 8 + k % 8;
    env_.set_plan(
        {{.operation = EnvOperation::read, .at = k, .kind = FaultKind::flip_bit, .bit = bit}});
    EXPECT_TRUE(sequence().begin(1).ok());
    auto outcome = reader_.model().run(sequence(), std::span(text_).subspan(64, 1), 64, layers);
    sequence().abort();
    env_.set_plan({});
    return outcome;
  }

  Result<void> run(Replay& replay, const FakeModel& model) {
    const auto outcome =
        model.run(replay, replay.tokens(), replay.first_position(), replay.layers_end());
    return outcome.ok() ? Result<void>() : outcome.error();
  }

  /// What the tier has of a page.
  Result<std::vector<std::byte>> load(std::uint32_t layer, std::uint32_t block) {
    const auto free_slot = store_->pool().acquire();
    if (!free_slot) return Error{ErrorCode::internal, "no slot is free"};
    const SlotIndex slot = *free_slot;
    bool finished = false;
    Result<void> outcome;
    store_->start_load(sequence().table().block(block), layer, slot, [&](Result<void> result) {
      finished = true;
      outcome = std::move(result);
    });
    while (!finished) store_->wait();
    const MutableBytes bytes = store_->pool().bytes(slot);
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    store_->pool().release(slot);
    HEADRACE_TRY(std::move(outcome));
    return copy;
  }

  std::vector<std::byte> expected_page(std::uint32_t layer, std::uint32_t block) const {
    PlainKv kv(store_->options().shape, layers, text_.size());
    EXPECT_TRUE(FakeModel(layers).run(kv, text_, 0, layers).ok());
    return kv.page(layer, block);
  }

  ImmediateEnv memory_;
  FaultEnv env_{memory_};
  const std::unique_ptr<PageStore> store_ = open_store(env_, with_slots(small_store(), layers + 3));
  const std::vector<TokenId> text_ = random_text(65, 1);
  Reader reader_{*store_, text_};
};

TEST_F(ReplayTest, EveryDamagedPageIsNamedAndComesBackBitForBit) {
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t block = 0; block < stored_blocks; ++block) {
      SCOPED_TRACE("layer " + std::to_string(layer) + ", block " + std::to_string(block));
      const auto outcome = step_with_damage(1 + layer * stored_blocks + block);
      ASSERT_FALSE(outcome.ok()) << "a damaged page was used";
      EXPECT_EQ(outcome.error().code, ErrorCode::page_lost);
      ASSERT_TRUE(sequence().lost().has_value());
      EXPECT_EQ(sequence().lost()->layer, layer);
      EXPECT_EQ(sequence().lost()->block, block);
      EXPECT_FALSE(load(layer, block).ok()) << "what was damaged is dropped";
      {
        Replay replay(sequence(), *sequence().lost());
        ASSERT_TRUE(run(replay, reader_.model()).ok());
        const auto finished = replay.finish();
        ASSERT_TRUE(finished.ok()) << finished.error().message;
      }
      const auto restored = load(layer, block);
      ASSERT_TRUE(restored.ok()) << restored.error().message;
      EXPECT_EQ(*restored, expected_page(layer, block));
    }
  }
  EXPECT_EQ(store_->stats().pages_damaged, layers * stored_blocks);
  EXPECT_EQ(store_->stats().pages_filled_by_replay, layers * stored_blocks);
  EXPECT_TRUE(reader_.read_all(1).ok());
}

// In a shared step another sequence may fail before this one is read at all.
TEST_F(ReplayTest, ANewStepForgetsWhatTheOneBeforeHadLost) {
  ASSERT_FALSE(step_with_damage(1).ok());
  ASSERT_TRUE(sequence().lost().has_value());
  ASSERT_TRUE(sequence().reserve(1).ok());
  EXPECT_FALSE(sequence().lost().has_value());
  sequence().abort();
  EXPECT_FALSE(sequence().lost().has_value());
}

TEST_F(ReplayTest, RunsNoMoreLayersAndTokensThanThePageNeeds) {
  ASSERT_FALSE(step_with_damage(1 + stored_blocks + 2).ok());
  const Replay replay(sequence(), *sequence().lost());
  EXPECT_EQ(replay.layers_end(), 2U);
  EXPECT_EQ(replay.first_position(), 32U);
  ASSERT_EQ(replay.tokens().size(), 16U);
  EXPECT_EQ(replay.tokens()[0], text_[32]);
  EXPECT_EQ(replay.shape(), store_->options().shape);
}

TEST_F(ReplayTest, NamesAnEarlierPageThatIsLostToo) {
  ASSERT_FALSE(step_with_damage(1 + stored_blocks + 3).ok());
  {
    Replay replay(sequence(), *sequence().lost());
    EXPECT_FALSE(replay.lost_earlier().has_value());
  }
  // Of layer 0 a replay of block 3 reads the blocks 0, 1 and 2.
  env_.set_plan({{.operation = EnvOperation::read, .at = 2}});
  {
    Replay replay(sequence(), *sequence().lost());
    const auto outcome = run(replay, reader_.model());
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ErrorCode::page_lost);
    ASSERT_TRUE(replay.lost_earlier().has_value());
    EXPECT_EQ(replay.lost_earlier()->layer, 0U);
    EXPECT_EQ(replay.lost_earlier()->block, 1U);
  }
  env_.set_plan({});
  EXPECT_TRUE(reader_.read_all(1).ok());
  EXPECT_EQ(store_->stats().pages_filled_by_replay, 2U);
}

TEST_F(ReplayTest, NoticesAModelThatIsNotRowInvariant) {
  ASSERT_FALSE(step_with_damage(1 + stored_blocks + 2).ok());
  FakeModel model = reader_.model();
  model.let_batches_matter();
  {
    Replay replay(sequence(), *sequence().lost());
    ASSERT_TRUE(run(replay, model).ok());
    const auto finished = replay.finish();
    ASSERT_FALSE(finished.ok()) << "a page with other bytes took the place of a sealed one";
    EXPECT_EQ(finished.error().code, ErrorCode::internal);
    EXPECT_NE(finished.error().message.find("(block 2, layer 1)"), std::string::npos);
  }
  EXPECT_FALSE(load(1, 2).ok()) << "nothing wrong is stored";
  EXPECT_EQ(store_->stats().pages_filled_by_replay, 0U);
  EXPECT_TRUE(reader_.read_all(1).ok()) << "with the right model it goes on";
}

TEST_F(ReplayTest, ThatCannotBeStoredSaysSoAndCanBeRunAgain) {
  ASSERT_FALSE(step_with_damage(6).ok());
  env_.set_plan(
      {{.operation = EnvOperation::write, .lasting = true, .code = ErrorCode::out_of_budget}});
  {
    Replay replay(sequence(), *sequence().lost());
    ASSERT_TRUE(run(replay, reader_.model()).ok());
    const auto finished = replay.finish();
    ASSERT_FALSE(finished.ok());
    EXPECT_EQ(finished.error().code, ErrorCode::out_of_budget);
    EXPECT_NE(finished.error().message.find("--kv-disk"), std::string::npos);
  }
  env_.set_plan({});
  EXPECT_TRUE(reader_.read_all(1).ok());
  EXPECT_EQ(store_->stats().pages_filled_by_replay, 1U);
}

TEST_F(ReplayTest, ThatIsGivenUpHoldsNoSlots) {
  ASSERT_FALSE(step_with_damage(4).ok());
  Auditor auditor(*store_);
  auditor.let_pages_be_lost();
  for (int i = 0; i < 4; ++i) {
    Replay replay(sequence(), *sequence().lost());
    if (i % 2 == 1) static_cast<void>(replay.attend(0).next());
  }
  auditor.expect_in_order({&sequence()});
}

}  // namespace
}  // namespace headrace
