// Rounds: how often a random test is repeated. In the suite a few times, with the same seeds every
// time; by `make soak` far more often, within a time, with new ones.
//
//   for (Rounds rounds("kill -9", {.suite = 50, .soak = 2'000}); rounds.next();) {
//     ... rounds.seed() ...
//   }
//
// HEADRACE_SOAK_MINUTES  asks for the long run: so many minutes for all tests together
// HEADRACE_SOAK_ROUNDS   instead of the numbers of the tests
// HEADRACE_SOAK_SEED     the first seed, to repeat a round that failed
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>

namespace headrace::test {

struct RoundCounts {
  std::uint64_t suite = 1;
  std::uint64_t soak = 1;
  double soak_share = 0.1;  ///< of the time of a long run, at most
};

class Rounds {
 public:
  Rounds(std::string name, const RoundCounts& counts) : name_(std::move(name)) {
    const std::optional<double> minutes = number_in("HEADRACE_SOAK_MINUTES");
    count_ = minutes ? counts.soak : counts.suite;
    if (minutes) {
      deadline_ = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(*minutes * 60 * counts.soak_share));
      first_seed_ = std::random_device{}();
    }
    if (const auto rounds = number_in("HEADRACE_SOAK_ROUNDS")) count_ = as_count(*rounds);
    if (const auto seed = number_in("HEADRACE_SOAK_SEED")) first_seed_ = as_count(*seed);
    std::cout << name_ << ": seed=" << first_seed_ << "\n";
  }
  ~Rounds() {
    std::cout << name_ << ": " << done_ << " of " << count_
              << " rounds, the last with seed=" << seed()
              << (testing::Test::HasFailure() ? ", which failed\n" : "\n");
  }
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  /// Whether there is one more. None after one that failed, so that the seed is the last one said.
  bool next() {
    const bool late = deadline_ && std::chrono::steady_clock::now() > *deadline_;
    if (done_ == count_ || late || testing::Test::HasFailure()) return false;
    ++done_;
    return true;
  }
  /// Of this round.
  std::uint64_t seed() const { return first_seed_ + (done_ == 0 ? 0 : done_ - 1); }

 private:
  static std::optional<double> number_in(const char* variable) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? std::nullopt : std::optional(std::strtod(text, nullptr));
  }
  static std::uint64_t as_count(double number) { return static_cast<std::uint64_t>(number); }

  const std::string name_;
  std::uint64_t count_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t first_seed_ = 1;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace headrace::test
