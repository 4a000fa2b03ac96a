// Random lives of a store with three sequences: steps that are cancelled, sequences that are forked
// and ended, sessions, full disks, operations that fail, and ends of the process. Every book is
// looked into after every step, and what was acknowledged is looked for after every restart.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "cache/cache_test_env.h"
#include "cache/session_store.h"
#include "codec/codecs.h"
#include "env/fault_env.h"
#include "tests/soak/session_oracle.h"
#include "tests/support/rounds.h"

namespace headrace::test {
namespace {

/// A stream that ends with `cancelled` after some pages: a forward pass that is stopped.
class StoppedKv final : public SequenceKv, private PageStream {
 public:
  StoppedKv(SequenceKv& kv, std::uint32_t batches) : kv_(kv), batches_(batches) {}

  const PageShape& shape() const override { return kv_.shape(); }
  std::span<const RowSlice> rows(std::uint32_t layer) override { return kv_.rows(layer); }
  PageStream& attend(std::uint32_t layer) override {
    stream_ = &kv_.attend(layer);
    return *this;
  }

 private:
  Result<std::span<const PageView>> next() override {
    if (batches_ == 0) return Error{ErrorCode::cancelled, "stopped"};
    --batches_;
    return stream_->next();
  }

  SequenceKv& kv_;
  PageStream* stream_ = nullptr;
  std::uint32_t batches_;
};

/// A text that is read into a sequence, and what it must give.
struct Text {
  std::vector<TokenId> tokens;
  FakeOutputs expected;
  std::unique_ptr<SequenceCache> sequence;
};

struct LifeOptions {
  bool has_faults = false;   ///< operations fail, the disk is full
  bool has_crashes = false;  ///< the plug is pulled
  int steps = 40;
};

class RandomLife {
 public:
  RandomLife(std::uint64_t seed, const LifeOptions& life)
      : life_(life),
        random_(seed),
        options_(random_options()),
        model_(options_.layers, options_.windows) {
    open();
  }

  void run() {
    for (int step = 0; step < life_.steps && !testing::Test::HasFailure(); ++step) {
      if (store_ != nullptr) {
        live();
      } else {
        stay_closed();
      }
    }
    calm();
    end_all();
    if (store_ != nullptr) expect_nothing_held();
    restart(false);
  }

  std::uint64_t cancelled() const { return cancelled_; }

 private:
  // --- What the world does

  PageStoreOptions random_options() {
    PageStoreOptions options = small_store();
    options.reuse = true;
    options.keep_disk = true;
    options.sequences = 3;
    if (chance(3)) options.windows = {24, 0, 40};
    if (chance(2)) options.disk_codec = &lossless_codec();
    options.policy = static_cast<CachePolicyKind>(random_() % 6);
    const std::uint64_t pages = 60 + random_() % 240;
    options.disk_bytes = disk_tier_limit_bytes(options.shape, pages);
    options = with_slots(options, 12 + static_cast<std::uint32_t>(random_() % 60));
    if (chance(2)) {
      options.host_bytes = 192 << 10;
      options.memory_bytes += 256 << 10;
    }
    return options;
  }

  bool chance(std::uint64_t one_in) { return random_() % one_in == 0; }

  /// Nothing goes wrong from now on.
  void calm() {
    env_.set_plan({});
    memory_.set_capacity(std::uint64_t{1} << 40);
  }

  void make_trouble() {
    constexpr std::array operations = {EnvOperation::any, EnvOperation::write, EnvOperation::read,
                                       EnvOperation::sync};
    Fault fault;
    fault.operation = operations[random_() % operations.size()];
    fault.at = 1 + random_() % 12;
    fault.lasting = chance(4);
    const bool is_write = fault.operation == EnvOperation::write;
    if (is_write && chance(2)) fault.kind = FaultKind::tear;
    if (is_write && chance(2)) fault.code = ErrorCode::out_of_budget;
    env_.set_plan({fault});
    troubled_ = true;
    if (chance(3)) memory_.set_capacity(random_() % options_.disk_bytes);
  }

  // --- Lives of the process

  void open() {
    auto opened = PageStore::open(env_, options_);
    if (!opened.ok()) {
      EXPECT_TRUE(troubled_) << opened.error().message;
      return;
    }
    store_ = std::move(opened).value();
    auditor_ = std::make_unique<Auditor>(*store_);
    if (life_.has_faults || life_.has_crashes) auditor_->let_pages_be_lost();
  }

  void close() {
    texts_.clear();
    auditor_.reset();
    store_.reset();
  }

  /// With a look at what is there, in a world without faults.
  void restart(bool is_crash) {
    if (is_crash) {
      env_.set_plan({{.operation = EnvOperation::any, .lasting = true}});
    }
    close();
    if (is_crash) {
      chance(3) ? memory_.crash() : memory_.crash_torn(random_());
    }
    calm();
    open();
    if (store_ == nullptr) return;
    // A block without room on disk, or whose write failed, is there as long as its process.
    oracle_.expect_in(*store_, {.pages_may_be_lost = options_.has_windows(),
                                .found_may_be_lost = life_.has_faults && life_.has_crashes});
    troubled_ = false;
  }

  void stay_closed() {
    if (chance(3)) return restart(life_.has_crashes && chance(2));
    if (life_.has_faults && chance(4)) make_trouble();
    const auto opened = SessionStore::open(env_, options_.disk_directory);
    if (!opened.ok()) return expect_excused(opened.error());
    SessionStore& sessions = **opened;
    const std::string name = a_name();
    const Result<SessionRecord> session = sessions.read(name);
    if (!session.ok()) return;
    if (chance(2)) {
      oracle_.begin(name, std::nullopt);
      const auto erased = sessions.erase(name, chance(2));
      if (erased.ok()) return oracle_.acknowledge(name);
      return expect_excused(erased.error());
    }
    const std::string copy = "copy";
    if (sessions.read(copy).ok()) return;
    oracle_.begin(copy, session->tokens);
    const auto forked = sessions.fork(name, copy);
    if (forked.ok()) return oracle_.acknowledge(copy);
    // It may have been there all the time: then a read failed.
    expect_excused(forked.error());
  }

  // --- What sequences do

  void live() {
    if (life_.has_faults && chance(6)) {
      troubled_&& chance(2) ? calm() : make_trouble();
    }
    const std::uint64_t action = random_() % 20;
    if (texts_.size() < options_.sequences && action < 5) {
      begin_text();
    } else if (action < 6) {
      if (life_.has_crashes && chance(2)) {
        restart(true);
      } else if (chance(2)) {
        restart(false);
      } else {
        close();
      }
      return;
    } else if (!texts_.empty()) {
      Text& text = texts_[random_() % texts_.size()];
      if (action < 9) {
        cancel_a_step(text);
      } else if (action < 11) {
        save(text);
      } else if (action < 13) {
        end(text);
      } else if (action < 14 && texts_.size() < options_.sequences) {
        fork(text);
      } else {
        read(text);
      }
    }
    look_into_the_books();
  }

  void look_into_the_books() {
    std::vector<SequenceCache*> sequences;
    for (const Text& text : texts_) sequences.push_back(text.sequence.get());
    auditor_->expect_in_order(sequences);
  }

  void begin_text() {
    Text text;
    text.tokens = text_with_a_common_start(random_() % 60);
    text.expected = expected_outputs(options_, text.tokens);
    auto sequence = SequenceCache::create(*store_);
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    text.sequence = std::move(sequence).value();
    if (!chance(4)) {
      text.sequence->take_cached(std::span(text.tokens).first(text.tokens.size() - 1));
    }
    texts_.push_back(std::move(text));
  }

  std::span<const TokenId> next_tokens(const Text& text) {
    const auto rest = std::span(text.tokens).subspan(text.sequence->tokens().size());
    if (rest.empty()) return rest;
    const std::size_t wanted = std::min<std::size_t>(rest.size(), 1 + random_() % 40);
    return rest.first(text.sequence->rows_possible(static_cast<std::uint32_t>(wanted)));
  }

  void read(Text& text) {
    const std::span<const TokenId> tokens = next_tokens(text);
    if (tokens.empty()) return;
    const std::size_t first = text.sequence->tokens().size();
    const auto outputs = run_step(*text.sequence, model_, tokens);
    if (!outputs.ok()) return expect_excused(outputs.error());
    EXPECT_TRUE(
        std::ranges::equal(*outputs, std::span(text.expected).subspan(first, tokens.size())))
        << "wrong bytes in a step of " << tokens.size() << " rows from " << first;
  }

  void cancel_a_step(Text& text) {
    const std::span<const TokenId> tokens = next_tokens(text);
    if (tokens.empty()) return;
    const auto begun = text.sequence->begin(static_cast<std::uint32_t>(tokens.size()));
    if (!begun.ok()) {
      text.sequence->abort();
      return expect_excused(begun.error());
    }
    StoppedKv stopped(*text.sequence, static_cast<std::uint32_t>(random_() % 8));
    const auto position = static_cast<std::uint32_t>(text.sequence->tokens().size());
    static_cast<void>(model_.run(stopped, tokens, position, options_.layers));
    text.sequence->abort();
    ++cancelled_;
  }

  void fork(Text& text) {
    auto copy = text.sequence->fork();
    if (!copy.ok()) return expect_excused(copy.error());
    texts_.push_back({text.tokens, text.expected, std::move(copy).value()});
  }

  void save(Text& text) {
    const auto tokens = text.sequence->tokens();
    if (tokens.empty()) return;
    const std::string name = a_name();
    oracle_.begin(name, std::vector<TokenId>(tokens.begin(), tokens.end()));
    const auto saved = save_sequence(*text.sequence, model_, session_named(name));
    if (saved.ok()) {
      oracle_.acknowledge(name);
    } else {
      expect_excused(saved.error());
    }
  }

  void end(Text& text) {
    std::swap(text, texts_.back());
    texts_.pop_back();
  }

  void end_all() { texts_.clear(); }

  std::string a_name() { return "s" + std::to_string(random_() % 4); }

  /// Sessions may fill the disk, and open pages the memory; all else needs trouble.
  void expect_excused(const Error& error) const {
    const bool is_full = error.code == ErrorCode::out_of_budget;
    const bool is_trouble =
        troubled_ && (error.code == ErrorCode::io || error.code == ErrorCode::not_found ||
                      error.code == ErrorCode::invalid_argument);
    EXPECT_TRUE(is_full || is_trouble) << to_string(error.code) << ": " << error.message;
  }

  // --- The end

  /// No sequence is left: no book says that anything is used, on its way or about to leave.
  void expect_nothing_held() {
    store_->reap();
    look_into_the_books();
    std::uint32_t resident = 0;
    store_->index().for_each_sealed([&](const Block& block) {
      EXPECT_EQ(block.users, 0U);
      for (const PageEntry& page : block.pages) {
        EXPECT_EQ(page.readers, 0U);
        EXPECT_FALSE(page.leaving) << "a page leaves though nobody waits for it";
        resident += page.slot ? 1 : 0;
      }
    });
    EXPECT_EQ(store_->slots_available(), store_->pool().free_slots() + resident)
        << "pages are counted that are not there, or that are tracked for nobody";
    EXPECT_EQ(store_->pool().free_slots() + resident, store_->pool().slots());
  }

  const LifeOptions life_;
  std::mt19937_64 random_;
  ImmediateEnv memory_;
  FaultEnv env_{memory_};
  const PageStoreOptions options_;
  const FakeModel model_;
  SessionOracle oracle_;
  std::unique_ptr<PageStore> store_;
  std::unique_ptr<Auditor> auditor_;
  std::vector<Text> texts_;
  bool troubled_ = false;
  std::uint64_t cancelled_ = 0;
};

class RandomLives : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(level_); }

  static void run(Rounds& rounds, const LifeOptions& options) {
    std::uint64_t cancelled = 0;
    while (rounds.next()) {
      SCOPED_TRACE("seed " + std::to_string(rounds.seed()));
      RandomLife life(rounds.seed(), options);
      life.run();
      cancelled += life.cancelled();
    }
    std::cout << cancelled << " steps cancelled\n";
  }

 private:
  const LogLevel level_ = log_level();
};

TEST_F(RandomLives, InAGoodWorldHoldNothingAtTheirEnd) {
  Rounds rounds("good lives", {.suite = 100, .soak = 10'000, .soak_share = 0.05});
  run(rounds, {});
}

TEST_F(RandomLives, OutliveFaults) {
  Rounds rounds("lives with faults", {.suite = 150, .soak = 50'000, .soak_share = 0.12});
  run(rounds, {.has_faults = true});
}

TEST_F(RandomLives, OutlivePowerLoss) {
  Rounds rounds("lives with power loss", {.suite = 200, .soak = 5'000, .soak_share = 0.1});
  run(rounds, {.has_crashes = true});
}

TEST_F(RandomLives, OutliveBoth) {
  Rounds rounds("lives with both", {.suite = 150, .soak = 50'000, .soak_share = 0.12});
  run(rounds, {.has_faults = true, .has_crashes = true});
}

}  // namespace
}  // namespace headrace::test
