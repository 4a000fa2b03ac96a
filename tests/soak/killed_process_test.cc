// A process that saves sessions is killed at random moments. What it had acknowledged is there for
// the next one, what that takes over is right, and nothing is left behind.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include "base/log.h"
#include "cache/session_store.h"
#include "env/env.h"
#include "tests/soak/session_oracle.h"
#include "tests/support/rounds.h"
#include "tests/support/temporary_directory.h"

namespace headrace::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// What the process says before and after it changes a session.
struct Report {
  enum Kind : std::uint8_t { begin, acknowledged };
  Kind kind = begin;
  std::uint8_t session = 0;
  std::uint32_t tokens = 0;  ///< 0: deletes it
  std::uint64_t text = 0;
};

std::string name_of(const Report& report) { return "s" + std::to_string(report.session); }

class Life {
 public:
  Life(PageStoreOptions options, std::uint64_t seed, int reports)
      : options_(std::move(options)), random_(seed), seed_(seed), reports_(reports) {}

  /// Until it is killed, or something is wrong.
  void live() {
    while (!testing::Test::HasFailure()) {
      {
        const auto store = open_store(posix_env(), options_);
        for (std::uint64_t texts = 1 + random_() % 12; texts > 0; --texts) read_a_text(*store);
      }
      if (random_() % 2 == 0) delete_a_session();
    }
  }

 private:
  void say(Report::Kind kind, const Report& report) const {
    Report said = report;
    said.kind = kind;
    if (write(reports_, &said, sizeof said) != sizeof said) _exit(4);
  }

  void read_a_text(PageStore& store) {
    Report report;
    report.session = static_cast<std::uint8_t>(random_() % 5);
    report.text = seed_ * 1'000 + texts_++;
    Reader reader(store, text_with_a_common_start(report.text));
    if (random_() % 4 != 0) reader.take_cached();
    while (!reader.done() && !testing::Test::HasFailure()) {
      const auto outcome = reader.read(1 + random_() % 40);
      EXPECT_TRUE(outcome.ok()) << outcome.error().message;
      if (random_() % 3 != 0) continue;
      report.tokens = static_cast<std::uint32_t>(reader.position());
      say(Report::begin, report);
      const auto saved = reader.save(session_named(name_of(report)));
      EXPECT_TRUE(saved.ok()) << saved.error().message;
      if (saved.ok()) say(Report::acknowledged, report);
    }
  }

  void delete_a_session() {
    Report report;
    report.session = static_cast<std::uint8_t>(random_() % 5);
    const auto sessions = SessionStore::open(posix_env(), options_.disk_directory);
    ASSERT_TRUE(sessions.ok()) << sessions.error().message;
    say(Report::begin, report);
    const auto erased = (*sessions)->erase(name_of(report), random_() % 2 == 0);
    EXPECT_TRUE(erased.ok() || erased.error().code == ErrorCode::not_found)
        << erased.error().message;
    say(Report::acknowledged, report);
  }

  const PageStoreOptions options_;
  std::mt19937_64 random_;
  const std::uint64_t seed_;
  const int reports_;
  std::uint64_t texts_ = 0;
};

void note(const Report& report, SessionOracle& oracle) {
  if (report.kind == Report::acknowledged) return oracle.acknowledge(name_of(report));
  SessionVersion version;
  if (report.tokens > 0) {
    version = text_with_a_common_start(report.text);
    version->resize(report.tokens);
  }
  oracle.begin(name_of(report), std::move(version));
}

/// Returns whether the process has said anything.
bool live_and_be_killed(const PageStoreOptions& options, std::uint64_t seed, milliseconds life_time,
                        SessionOracle& oracle) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    Life(options, seed, ends[1]).live();
    _exit(3);
  }
  close(ends[1]);
  const auto deadline = steady_clock::now() + life_time;
  bool said_anything = false;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    pollfd ready = {.fd = ends[0], .events = POLLIN, .revents = 0};
    // Killed when the time is over; what it has said until then lies in the pipe.
    if (left.count() <= 0) kill(child, SIGKILL);
    if (left.count() > 0 && poll(&ready, 1, static_cast<int>(left.count())) <= 0) continue;
    Report report;
    if (read(ends[0], &report, sizeof report) != sizeof report) break;
    said_anything = true;
    note(report, oracle);
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "the process ended by itself: " << status;
  return said_anything;
}

void expect_in_order(const PageStoreOptions& options, SessionOracle& oracle) {
  const auto begin = steady_clock::now();
  const auto store = open_store(posix_env(), options);
  EXPECT_LE(steady_clock::now() - begin, milliseconds(2'000)) << "opening took too long";
  Auditor auditor(*store);
  oracle.expect_in(*store);
  auditor.expect_in_order({});
}

void expect_clean(const PageStoreOptions& options) {
  expect_only_segments(list_names(options.disk_directory));
  std::uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(options.disk_directory)) {
    bytes += file.file_size();
  }
  EXPECT_LE(bytes, options.disk_bytes) << "the limit is hard";
}

TEST(KilledProcess, LosesNoSessionThatItAcknowledged) {
  const LogLevel level = log_level();
  set_log_level(LogLevel::off);
  std::unique_ptr<TemporaryDirectory> directory;
  std::unique_ptr<SessionOracle> oracle;
  std::uint64_t lives_with_reports = 0;
  std::uint64_t lives = 0;
  for (Rounds rounds("kill -9", {.suite = 50, .soak = 2'000, .soak_share = 0.25}); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    if (lives++ % 10 == 0) {
      directory = std::make_unique<TemporaryDirectory>();
      oracle = std::make_unique<SessionOracle>();
    }
    PageStoreOptions options =
        kept_store(12U + 9 * static_cast<std::uint32_t>(lives / 10 % 3), 300);
    options.disk_directory = directory->path_of("kv");
    const milliseconds life_time(5 + random() % 100);
    lives_with_reports += live_and_be_killed(options, rounds.seed(), life_time, *oracle) ? 1 : 0;
    if (!std::filesystem::exists(options.disk_directory)) continue;  // killed before it began
    // A look at it puts it in order, so not after every life.
    if (random() % 3 != 0 || lives % 10 == 0) {
      expect_in_order(options, *oracle);
      expect_clean(options);
    }
  }
  EXPECT_GE(lives_with_reports, lives / 4) << "most were killed too early";
  set_log_level(level);
}

}  // namespace
}  // namespace headrace::test
