// Every way that keys and values can take from the pass that computed them to the one that reads
// them, against a fresh prefill of the same text: all bytes of all pages are the same.
#include "tests/soak/state_audit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "cache/session_store.h"
#include "tests/support/engine_run.h"
#include "tests/support/rounds.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace headrace::test {
namespace {

constexpr std::uint32_t context = 400;

/// Beside the least that an engine opens with, where buffers need more or two texts share pages.
/// Few pages: the texts have far more.
constexpr std::uint64_t spare_bytes = 64 << 10;

EngineOptions kept_on_disk(EngineOptions options) {
  options.kv.keep_disk = true;
  options.kv.disk_bytes = 4 << 20;
  return options;
}

/// The least KV memory that a model opens with.
struct LeastMemory {
  explicit LeastMemory(const EngineOptions& options)
      : scratch_bytes(smallest_kv_memory(options, 512)),
        kept_bytes(smallest_kv_memory(kept_on_disk(options), 512)) {}

  std::uint64_t scratch_bytes;
  std::uint64_t kept_bytes;  ///< what a later process finds needs books and buffers
};

/// A world for one trip: options of engines, a text, and dice.
class Trip {
 public:
  Trip(EngineOptions options, const LeastMemory& least, std::uint64_t seed)
      : roomy_(std::move(options)), least_(least), random_(seed) {
    roomy_.kv.disk_directory = directory_.path_of("kv");
    text_ = random_tokens(60 + random_() % 240, random_());
  }

  std::uint64_t dice(std::uint64_t sides) { return random_() % sides; }
  const std::vector<TokenId>& text() const { return text_; }
  std::span<const TokenId> head(std::size_t tokens) const { return std::span(text_).first(tokens); }
  std::span<const TokenId> rest(const Sequence& sequence) const {
    return std::span(text_).subspan(sequence.tokens().size());
  }
  std::size_t somewhere() { return 20 + random_() % (text_.size() - 30); }
  std::string path_of(const std::string& name) const { return directory_.path_of(name); }

  EngineOptions roomy() const { return roomy_; }
  EngineOptions tight() const {
    EngineOptions options = roomy_;
    options.kv.memory_bytes = least_.scratch_bytes;
    return options;
  }
  EngineOptions kept() const {
    EngineOptions options = kept_on_disk(roomy_);
    options.kv.memory_bytes = least_.kept_bytes + spare_bytes;
    return options;
  }
  EngineOptions with_host(const std::string& codec) const {
    EngineOptions options = tight();
    options.kv.memory_bytes *= 4;
    options.kv.host_percent = 50;
    options.kv.host_codec = codec;
    return options;
  }

  Engine& open(const EngineOptions& options) {
    engine_.reset();
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    engine_ = std::move(engine).value();
    return *engine_;
  }
  Engine& engine() { return *engine_; }
  void close() { engine_.reset(); }
  std::unique_ptr<Sequence> begin() {
    auto sequence = engine_->new_sequence();
    EXPECT_TRUE(sequence.ok()) << sequence.error().message;
    return std::move(sequence).value();
  }
  static void read(Sequence& sequence, std::span<const TokenId> tokens) {
    if (tokens.empty()) return;
    const auto outcome = sequence.append(tokens, nullptr, nullptr);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }
  void read_to(Sequence& sequence, std::size_t end) const {
    read(sequence, head(end).subspan(sequence.tokens().size()));
  }
  void save(Sequence& sequence) {
    const auto saved = engine_->save_session("s", sequence, "");
    EXPECT_TRUE(saved.ok()) << saved.error().message;
  }
  /// A sequence with the text of the session.
  std::unique_ptr<Sequence> resume(const std::string& name) {
    const auto session = engine_->read_session(name);
    EXPECT_TRUE(session.ok()) << session.error().message;
    auto sequence = begin();
    if (session.ok()) read(*sequence, session->tokens);
    return sequence;
  }

  void expect_like_fresh(Sequence& sequence) {
    const std::vector<TokenId> tokens(sequence.tokens().begin(), sequence.tokens().end());
    EngineOptions options = roomy_;
    options.kv.disk_directory = directory_.path_of("unused");
    const auto engine = Engine::open(options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto fresh = (*engine)->new_sequence();
    ASSERT_TRUE(fresh.ok()) << fresh.error().message;
    read(**fresh, tokens);
    expect_same_state(state_of(**fresh), state_of(sequence));
    EXPECT_TRUE(std::ranges::equal((*fresh)->logits(), sequence.logits())) << "logits differ";
  }

 private:
  TemporaryDirectory directory_;
  EngineOptions roomy_;
  const LeastMemory least_;
  std::mt19937_64 random_;
  std::vector<TokenId> text_;
  std::unique_ptr<Engine> engine_;
};

void flip_bits_on_disk(const std::string& directory, Trip& trip) {
  for (const std::string& name : list_names(directory)) {
    if (!name.ends_with(".hrs")) continue;
    std::string bytes = read_bytes(directory + "/" + name);
    for (std::size_t at = 4096 + trip.dice(8192); at < bytes.size(); at += 4096 + trip.dice(40000))
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << trip.dice(8)));
    write_bytes(directory + "/" + name, bytes);
  }
}

struct Path {
  const char* name;
  std::function<void(Trip&)> run;
};

void read_in_steps(Trip& trip, const EngineOptions& options, std::uint64_t most) {
  trip.open(options);
  const auto sequence = trip.begin();
  while (sequence->tokens().size() < trip.text().size()) {
    const auto rest = trip.rest(*sequence);
    Trip::read(*sequence, rest.first(std::min<std::size_t>(rest.size(), 1 + trip.dice(most))));
  }
  trip.expect_like_fresh(*sequence);
}

/// Reads most of the text, closes, lets `between` happen and reads all in a later process.
void read_again_later(Trip& trip, const EngineOptions& first, const EngineOptions& later,
                      const std::function<void()>& between) {
  trip.open(first);
  {
    const auto sequence = trip.begin();
    trip.read_to(*sequence, trip.somewhere());
  }
  trip.close();
  between();
  trip.open(later);
  const auto sequence = trip.begin();
  trip.read_to(*sequence, trip.text().size());
  trip.expect_like_fresh(*sequence);
}

void go_on_with_a_session(Trip& trip, const EngineOptions& options, const std::string& name) {
  trip.open(options);
  const auto sequence = trip.resume(name);
  trip.expect_like_fresh(*sequence);
  trip.read_to(*sequence, trip.text().size());
  trip.expect_like_fresh(*sequence);
}

void save_a_session(Trip& trip) {
  trip.open(trip.kept());
  const auto sequence = trip.begin();
  trip.read_to(*sequence, trip.somewhere());
  trip.save(*sequence);
}

std::unique_ptr<SessionStore> sessions_in(const std::string& directory) {
  auto sessions = SessionStore::open(posix_env(), directory);
  EXPECT_TRUE(sessions.ok()) << sessions.error().message;
  return std::move(sessions).value();
}

std::vector<Path> paths() {
  return {
      {"one step", [](Trip& trip) { read_in_steps(trip, trip.roomy(), 1'000); }},
      {"small steps", [](Trip& trip) { read_in_steps(trip, trip.roomy(), 5); }},
      {"evicted and streamed", [](Trip& trip) { read_in_steps(trip, trip.tight(), 60); }},
      {"streamed past the system's cache",
       [](Trip& trip) {
         EngineOptions options = trip.tight();
         options.kv.memory_bytes += spare_bytes;
         options.kv.disk_direct = true;
         read_in_steps(trip, options, 60);
       }},
      {"encoded on disk",
       [](Trip& trip) {
         EngineOptions options = trip.tight();
         options.kv.disk_codec = "lossless";
         read_in_steps(trip, options, 60);
       }},
      {"in memory, encoded",
       [](Trip& trip) { read_in_steps(trip, trip.with_host("lossless"), 60); }},
      {"in memory, raw", [](Trip& trip) { read_in_steps(trip, trip.with_host("raw"), 60); }},
      {"cancelled and continued",
       [](Trip& trip) {
         trip.open(trip.tight());
         const auto sequence = trip.begin();
         for (int i = 0; i < 4; ++i) {
           const std::size_t stop = trip.dice(80);
           static_cast<void>(sequence->append(
               trip.rest(*sequence), [&](std::uint32_t done, std::uint32_t) { return done < stop; },
               nullptr));
           if (trip.rest(*sequence).empty()) break;
         }
         trip.read_to(*sequence, trip.text().size());
         trip.expect_like_fresh(*sequence);
       }},
      {"guesses dropped",
       [](Trip& trip) {
         trip.open(trip.tight());
         const auto sequence = trip.begin();
         std::vector<TokenId> prompt(trip.head(40).begin(), trip.head(40).end());
         prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 30);
         const auto generation = sequence->generate(
             prompt, {.max_tokens = 50, .ignore_end = true, .prompt_lookup_tokens = 6});
         ASSERT_TRUE(generation.ok()) << generation.error().message;
         Trip::read(*sequence, trip.head(3));
         trip.expect_like_fresh(*sequence);
       }},
      {"two in one step",
       [](Trip& trip) {
         trip.open(trip.roomy());
         const auto first = trip.begin();
         const auto second = trip.begin();
         trip.read_to(*second, 13);
         while (!trip.rest(*second).empty()) {
           const std::size_t rows =
               std::min<std::size_t>(1 + trip.dice(30), trip.rest(*second).size());
           const std::vector<SequenceStep> steps = {{first.get(), trip.rest(*first).first(rows)},
                                                    {second.get(), trip.rest(*second).first(rows)}};
           const auto outcome = trip.engine().append_together(steps);
           ASSERT_TRUE(outcome.ok()) << outcome.error().message;
         }
         trip.expect_like_fresh(*first);
         trip.expect_like_fresh(*second);
       }},
      {"shared with a living text",
       [](Trip& trip) {
         trip.open(trip.kept());
         const auto first = trip.begin();
         trip.read_to(*first, trip.somewhere());
         const auto second = trip.begin();
         trip.read_to(*second, trip.text().size());
         trip.expect_like_fresh(*first);
         trip.expect_like_fresh(*second);
       }},
      {"shared with one that has ended",
       [](Trip& trip) {
         trip.open(trip.roomy());
         {
           trip.read_to(*trip.begin(), trip.somewhere());
         }
         const auto second = trip.begin();
         trip.read_to(*second, trip.text().size());
         trip.expect_like_fresh(*second);
       }},
      {"the start of a block copied",
       [](Trip& trip) {
         trip.open(trip.kept());
         {
           trip.read_to(*trip.begin(), trip.text().size());
         }
         const auto second = trip.begin();
         std::vector<TokenId> other(trip.head(trip.somewhere()).begin(),
                                    trip.head(trip.somewhere()).end());
         const std::vector<TokenId> end = random_tokens(40, trip.dice(1'000'000));
         other.insert(other.end(), end.begin(), end.end());
         Trip::read(*second, other);
         trip.expect_like_fresh(*second);
       }},
      {"forked",
       [](Trip& trip) {
         trip.open(trip.kept());
         const auto first = trip.begin();
         trip.read_to(*first, trip.somewhere());
         const auto second = first->fork();
         ASSERT_TRUE(second.ok()) << second.error().message;
         Trip::read(**second, random_tokens(30, trip.dice(1'000'000)));
         trip.read_to(*first, trip.text().size());
         trip.expect_like_fresh(*first);
         trip.expect_like_fresh(**second);
       }},
      {"restored after a restart",
       [](Trip& trip) { read_again_later(trip, trip.kept(), trip.kept(), [] {}); }},
      {"restored with a codec",
       [](Trip& trip) {
         EngineOptions options = trip.kept();
         options.kv.disk_codec = "lossless";
         read_again_later(trip, options, options, [] {});
       }},
      {"replayed after damage",
       [](Trip& trip) {
         read_again_later(trip, trip.kept(), trip.kept(),
                          [&] { flip_bits_on_disk(trip.path_of("kv"), trip); });
       }},
      {"saved, and read on",
       [](Trip& trip) {
         trip.open(trip.kept());
         const auto sequence = trip.begin();
         for (int i = 0; i < 4; ++i) {
           trip.read_to(*sequence, std::max(trip.somewhere(), sequence->tokens().size()));
           trip.save(*sequence);
         }
         trip.read_to(*sequence, trip.text().size());
         trip.expect_like_fresh(*sequence);
       }},
      {"a session resumed",
       [](Trip& trip) {
         save_a_session(trip);
         go_on_with_a_session(trip, trip.kept(), "s");
       }},
      {"a session resumed after a kill",
       [](Trip& trip) {
         trip.open(trip.kept());
         const auto sequence = trip.begin();
         trip.read_to(*sequence, trip.somewhere());
         trip.save(*sequence);
         // What a kill would leave: the files as they are now.
         EngineOptions later = trip.kept();
         later.kv.disk_directory = trip.path_of("killed");
         std::filesystem::copy(trip.path_of("kv"), later.kv.disk_directory);
         const std::unique_ptr<Engine> engine = Engine::open(later).value();
         const auto again = engine->new_sequence().value();
         Trip::read(*again, engine->read_session("s")->tokens);
         trip.read_to(*again, trip.text().size());
         trip.expect_like_fresh(*again);
       }},
      {"a session copied",
       [](Trip& trip) {
         save_a_session(trip);
         trip.close();
         ASSERT_TRUE(sessions_in(trip.path_of("kv"))->fork("s", "copy").ok());
         ASSERT_TRUE(sessions_in(trip.path_of("kv"))->erase("s", true).ok());
         go_on_with_a_session(trip, trip.kept(), "copy");
       }},
      {"a session carried to another directory",
       [](Trip& trip) {
         save_a_session(trip);
         trip.close();
         EngineOptions there = trip.kept();
         there.kv.disk_directory = trip.path_of("there");
         trip.open(there);
         {
           Trip::read(*trip.begin(), random_tokens(30, 5));
         }
         trip.close();
         ASSERT_TRUE(sessions_in(trip.path_of("kv"))->export_to("s", trip.path_of("s.hrs")).ok());
         ASSERT_TRUE(sessions_in(trip.path_of("there"))->import_from(trip.path_of("s.hrs")).ok());
         go_on_with_a_session(trip, there, "s");
       }},
  };
}

struct AuditedModel {
  const char* name;
  TinyModelOptions model;
  KvType type;
};

class StateAudit : public testing::TestWithParam<AuditedModel> {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(level_); }

 private:
  const LogLevel level_ = log_level();
};

TEST_P(StateAudit, FindsTheBytesOfAFreshPrefillOnEveryPath) {
  const TemporaryDirectory directory;
  const auto written = write_tiny_model(directory.path_of("tiny.gguf"), GetParam().model);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const EngineOptions options = {.model_path = directory.path_of("tiny.gguf"),
                                 .context = context,
                                 .sequences = 2,
                                 .threads = 1,
                                 .chunk_tokens = 32,
                                 .kv = {.type = GetParam().type,
                                        .disk_directory = directory.path_of("kv"),
                                        .tokens_per_block = 16}};
  const LeastMemory least(options);
  const std::vector<Path> all = paths();
  const RoundCounts counts = {.suite = all.size(), .soak = 500 * all.size(), .soak_share = 0.05};
  Rounds rounds(std::string("state audit ") + GetParam().name, counts);
  for (std::size_t path = 0; rounds.next(); path = (path + 1) % all.size()) {
    SCOPED_TRACE(all[path].name);
    Trip trip(options, least, rounds.seed());
    all[path].run(trip);
  }
}

TinyModelOptions gemma_with_a_window() {
  TinyModelOptions model = tiny_model_options("gemma3", GGML_TYPE_F32);
  model.layers = 3;
  model.window = 40;
  return model;
}

INSTANTIATE_TEST_SUITE_P(Models, StateAudit,
                         testing::Values(AuditedModel{"LlamaI16", {}, KvType::i16},
                                         AuditedModel{"LlamaF16", {}, KvType::f16},
                                         AuditedModel{"GemmaWithAWindow", gemma_with_a_window(),
                                                      KvType::i16}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace headrace::test
