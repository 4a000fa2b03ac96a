// Allocation k fails, for every k: what was asked for ends with an error that says so, nothing is
// leaked, no thread dies, and the directory opens afterwards with every session whose save was
// acknowledged. A program of its own, because it takes the place of operator new.
//
// What llama.cpp itself leaks when it runs out of memory is not ours to give back: the functions
// that do so are measured by themselves (--wrap of the linker), and the difference is left out.
//
// Counted are the allocations of C++; not those of ggml, which takes its memory by malloc().
#include <gguf.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "headrace/engine.h"
#include "tests/support/engine_run.h"
#include "tests/support/rounds.h"
#include "tests/support/segments.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace {

constexpr std::uint64_t never = ~std::uint64_t{0};

std::atomic<std::int64_t> live_allocations = 0;
std::atomic<std::uint64_t> allocations = 0;  // since the last arm()
std::atomic<std::uint64_t> first_failure = never;
std::atomic<std::uint64_t> last_failure = never;
std::atomic<bool> all_threads_fail = false;
std::atomic<std::int64_t> leaked_by_llama_cpp = 0;
thread_local bool is_caller = false;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (is_caller || all_threads_fail) {
    const std::uint64_t number = ++allocations;
    if (number >= first_failure && number <= last_failure) throw std::bad_alloc();
  }
  const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, size == 0 ? alignment : size);
  if (memory == nullptr) throw std::bad_alloc();
  ++live_allocations;
  return memory;
}

void release(void* memory) noexcept {
  if (memory != nullptr) --live_allocations;
  std::free(memory);
}

/// What a function of llama.cpp makes; nothing else allocates meanwhile.
template <typename Make>
auto measured(const Make& make) {
  const std::int64_t live_before = live_allocations;
  const auto note_leak = [&] { leaked_by_llama_cpp += live_allocations - live_before; };
  try {
    const auto made = make();
    if (made == nullptr) note_leak();
    return made;
  } catch (const std::bad_alloc&) {
    note_leak();
    throw;
  }
}

}  // namespace

extern "C" {
gguf_context* __real_gguf_init_from_buffer(const void*, std::size_t, gguf_init_params);
gguf_context* __wrap_gguf_init_from_buffer(const void* bytes, std::size_t size,
                                           gguf_init_params params) {
  return measured([&] { return __real_gguf_init_from_buffer(bytes, size, params); });
}
llama_model* __real_llama_model_load_from_file(const char*, llama_model_params);
llama_model* __wrap_llama_model_load_from_file(const char* path, llama_model_params params) {
  return measured([&] { return __real_llama_model_load_from_file(path, params); });
}
llama_sampler* __real_llama_sampler_chain_init(llama_sampler_chain_params);
llama_sampler* __wrap_llama_sampler_chain_init(llama_sampler_chain_params params) {
  return measured([&] { return __real_llama_sampler_chain_init(params); });
}
}

// NOLINTBEGIN(misc-definitions-in-headers,readability-inconsistent-declaration-parameter-name)
void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
// NOLINTEND(misc-definitions-in-headers,readability-inconsistent-declaration-parameter-name)

namespace headrace::test {
namespace {

/// Which allocations of one step fail.
struct Failure {
  std::uint64_t first = never;
  bool is_for_ever = false;    ///< and all that come after it
  bool is_everywhere = false;  ///< in all threads
};

/// Carries out one step, in which allocations fail. Returns how many there were.
template <typename Step>
std::uint64_t with_failure(const Failure& failure, Step&& step) {
  allocations = 0;
  all_threads_fail = failure.is_everywhere;
  first_failure = failure.first;
  last_failure = failure.is_for_ever ? never : failure.first;
  is_caller = true;
  step();
  is_caller = false;
  all_threads_fail = false;
  first_failure = never;
  return allocations;
}

/// What happens in one life of a store, step by step.
class Life {
 public:
  explicit Life(const EngineOptions& options) : options_(options) {
    // What is allocated in a step is allocated by the engine.
    for (auto* tokens : {&saved_, &offered_, &answer_}) tokens->reserve(options.context);
  }

  static constexpr std::size_t steps = 12;
  static constexpr std::size_t first_end = 4;

  /// False: it did not work, and error() says why.
  bool carry_out(std::size_t step) {
    switch (step) {
      case 0:
      case 5:
        return keep(Engine::open(options_), engine_);
      case 1:
        return keep(engine_->new_sequence(), sequence_);
      case 2:
        return generate(prompt_);
      case 3:
      case 10:
        return save();
      case 6:
        return keep(engine_->read_session("s"), session_) &&
               keep(engine_->new_sequence(), sequence_);
      case 7:
        return keep(sequence_->append(session_.tokens, nullptr, nullptr));
      case 8:
        return generate(std::span(answer_).last(1));
      case 9:
        return copy();
      default:
        return close();
    }
  }
  bool close() {
    sequence_.reset();
    engine_.reset();
    return true;
  }
  /// Whatever has failed before, this gives an outcome.
  void go_on() {
    if (sequence_ != nullptr) static_cast<void>(sequence_->append(prompt_, nullptr, nullptr));
  }

  KvStats stats() const { return engine_->kv_stats(); }
  const Error& error() const { return error_; }
  /// By the last save that was acknowledged, and by the one that was tried last.
  const std::vector<TokenId>& saved() const { return saved_; }
  const std::vector<TokenId>& offered() const { return offered_; }
  const std::vector<TokenId>& answer() const { return answer_; }

 private:
  template <typename T>
  bool keep(Result<T> result, T& place) {
    if (!result.ok()) return keep(Result<void>(std::move(result).error()));
    place = std::move(result).value();
    return true;
  }
  bool keep(Result<void> result) {
    if (!result.ok()) error_ = std::move(result).error();
    return result.ok();
  }
  bool generate(std::span<const TokenId> prompt) {
    Generation generation;
    const GenerateOptions options = {.max_tokens = 12, .ignore_end = true};
    if (!keep(sequence_->generate(prompt, options), generation)) return false;
    answer_.insert(answer_.end(), generation.tokens.begin(), generation.tokens.end());
    return true;
  }
  bool save() {
    offered_.assign(sequence_->tokens().begin(), sequence_->tokens().end());
    if (!keep(engine_->save_session("s", *sequence_, "note"))) return false;
    saved_.assign(offered_.begin(), offered_.end());
    return true;
  }
  bool copy() {
    std::unique_ptr<Sequence> copy;
    return keep(sequence_->fork(), copy) && keep(copy->append(prompt_, nullptr, nullptr));
  }

  const EngineOptions options_;
  const std::vector<TokenId> prompt_ = random_tokens(40, 1);
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> sequence_;
  SessionState session_;
  std::vector<TokenId> saved_;
  std::vector<TokenId> offered_;
  std::vector<TokenId> answer_;
  Error error_;
};

/// A byte of every second page in the directory.
void damage_pages(const std::string& directory) {
  for (const std::string& path : segment_files(directory)) {
    std::string bytes = read_bytes(path);
    bool is_damaged = false;
    for (const RecordHeader& page : page_records_of(bytes)) {
      is_damaged = !is_damaged;
      if (is_damaged) bytes[page.offset + segment_unit_bytes] ^= 1;
    }
    write_bytes(path, bytes);
  }
}

class Allocation : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::off);
    const auto written = write_tiny_model(directory_.path_of("tiny.gguf"), {.head_dim = 32});
    ASSERT_TRUE(written.ok()) << written.error().message;
    options_ = {.model_path = directory_.path_of("tiny.gguf"),
                .context = 160,
                .threads = 2,
                .chunk_tokens = 16,
                .kv = {.type = KvType::f16,
                       .disk_directory = directory_.path_of("kv"),
                       .tokens_per_block = 16}};
    options_.kv.disk_bytes = 1 << 20;
    options_.kv.keep_disk = true;
    options_.kv.memory_bytes = smallest_kv_memory(options_, 4096) + (24 << 10);
    // What is made once for the process is made here.
    for (const bool has_damage : {false, true}) {
      std::filesystem::remove_all(options_.kv.disk_directory);
      Life life(options_);
      for (std::size_t step = 0; step < Life::steps; ++step) {
        ASSERT_TRUE(life.carry_out(step)) << life.error().message;
        if (step == Life::first_end && has_damage) damage_pages(options_.kv.disk_directory);
        if (step != 8) continue;
        ASSERT_GT(life.stats().pages_filled_from_disk, 0U) << "pages stream";
        ASSERT_EQ(life.stats().pages_filled_by_replay > 0, has_damage);
      }
      expected_answer_ = life.answer();
    }
  }
  void TearDown() override { set_log_level(level_); }

  static std::int64_t live() { return live_allocations - leaked_by_llama_cpp; }

  /// io: a thread of the tier had none, and what that meant is said by whoever needed it.
  static void expect_no_memory(const Error& error) {
    if (error.code == ErrorCode::io) return;
    EXPECT_EQ(error.code, ErrorCode::out_of_budget) << error.message;
    EXPECT_NE(error.message.find("memory"), std::string::npos) << error.message;
  }

  /// One life in which allocations of one step fail. Returns how many that step makes. Pages are
  /// damaged between the two processes, or not.
  std::uint64_t live_through(std::size_t failing_step, const Failure& failure, bool has_damage) {
    std::filesystem::remove_all(options_.kv.disk_directory);
    const std::int64_t live_before = live();
    std::uint64_t made = 0;
    {
      Life life(options_);
      for (std::size_t step = 0; step < failing_step; ++step) {
        EXPECT_TRUE(life.carry_out(step)) << life.error().message;
        if (step == Life::first_end && has_damage) damage_pages(options_.kv.disk_directory);
      }
      bool works = false;
      made = with_failure(failure, [&] { works = life.carry_out(failing_step); });
      if (!works) expect_no_memory(life.error());
      for (std::size_t step = failing_step + 1; works && step < Life::steps; ++step) {
        works = life.carry_out(step);
        if (!works) expect_no_memory(life.error());
      }
      if (works) {
        EXPECT_EQ(life.answer(), expected_answer_);
      }
      life.go_on();
      life.close();
      expect_saved(life);
    }
    EXPECT_EQ(live(), live_before) << "a leak";
    return made;
  }

  /// In each step each allocation in turn.
  void expect_saved_whatever_fails(Failure failure);

  void expect_saved(const Life& life) const {
    const auto engine = Engine::open(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto session = (*engine)->read_session("s");
    if (!session.ok()) {
      EXPECT_EQ(session.error().code, ErrorCode::not_found) << session.error().message;
      EXPECT_TRUE(life.saved().empty()) << "a save was acknowledged";
      return;
    }
    EXPECT_TRUE(session->tokens == life.saved() || session->tokens == life.offered());
  }

  TemporaryDirectory directory_{TemporaryDirectory::Place::memory};
  EngineOptions options_;
  std::vector<TokenId> expected_answer_;

 private:
  const LogLevel level_ = log_level();
};

/// Counts from 1 on: to 200 in the suite, far in a long run.
class Numbers {
 public:
  explicit Numbers(const std::string& name)
      : rounds_(name, {.suite = 200, .soak = 20'000, .soak_share = 0.005}) {}
  bool next() {
    ++number_;
    return rounds_.next();
  }
  std::uint64_t number() const { return number_; }

 private:
  Rounds rounds_;
  std::uint64_t number_ = 0;
};

void Allocation::expect_saved_whatever_fails(Failure failure) {
  for (std::size_t step = 0; step < Life::steps; ++step) {
    bool is_beyond = false;
    for (Numbers numbers("step " + std::to_string(step)); !is_beyond && numbers.next();) {
      failure.first = numbers.number();
      SCOPED_TRACE("step " + std::to_string(step) + ", allocation " +
                   std::to_string(failure.first));
      // Pages are rebuilt in every second life, in which there is more to do.
      const bool has_damage = failure.first % 2 == 0;
      is_beyond = live_through(step, failure, has_damage) < failure.first && has_damage;
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(Allocation, OfAModelThatIsOpenedFailsWithAnError) {
  options_.kv.keep_disk = false;
  options_.kv.memory_bytes = 0;
  for (const bool is_for_ever : {false, true}) {
    bool is_beyond = false;
    for (Numbers numbers("open"); !is_beyond && numbers.next();) {
      const std::uint64_t number = numbers.number();
      SCOPED_TRACE("allocation " + std::to_string(number) + (is_for_ever ? " and all later" : ""));
      const std::int64_t live_before = live();
      {
        Result<std::unique_ptr<Engine>> engine = Error();
        const std::uint64_t made =
            with_failure({number, is_for_ever}, [&] { engine = Engine::open(options_); });
        is_beyond = made < number;
        EXPECT_TRUE(engine.ok() || !is_beyond);
        if (!engine.ok()) expect_no_memory(engine.error());
      }
      EXPECT_EQ(live(), live_before) << "a leak";
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(Allocation, ThatFailedLeavesAnEngineThatRefusesAllAndCanBeOpenedAnew) {
  const std::vector<TokenId> text = random_tokens(40, 1);
  const auto expect_refused = [](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::out_of_budget);
    EXPECT_NE(error.message.find("open it anew"), std::string::npos) << error.message;
  };
  {
    const auto engine = Engine::open(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto sequence = (*engine)->new_sequence();
    ASSERT_TRUE((*sequence)->append(text, nullptr, nullptr).ok());
    Result<void> read;
    with_failure({.first = 3}, [&] { read = (*sequence)->append(text, nullptr, nullptr); });
    ASSERT_FALSE(read.ok());
    expect_no_memory(read.error());
    expect_refused((*sequence)->append(text, nullptr, nullptr).error());
    expect_refused((*sequence)->fork().error());
    expect_refused((*sequence)->generate(text, {}).error());
    expect_refused((*engine)->new_sequence().error());
    expect_refused((*engine)->save_session("t", **sequence, "").error());
    expect_refused((*engine)->read_session("s").error());
    expect_refused((*engine)->set_kv_memory(4 << 20).error());
    expect_refused((*engine)->set_kv_disk(4 << 20).error());
    expect_refused((*engine)->append_together({}).error());
  }
  const auto engine = Engine::open(options_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  EXPECT_TRUE((*engine)->read_session("s").ok());
}

TEST_F(Allocation, OfTheCallerFailsAndWhatWasSavedIsThere) { expect_saved_whatever_fails({}); }

TEST_F(Allocation, OfAnyThreadFailsAndWhatWasSavedIsThere) {
  expect_saved_whatever_fails({.is_everywhere = true});
}

TEST_F(Allocation, FailsFromThenOnInAllThreadsAndWhatWasSavedIsThere) {
  expect_saved_whatever_fails({.is_for_ever = true, .is_everywhere = true});
}

}  // namespace
}  // namespace headrace::test
