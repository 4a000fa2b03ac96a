// SessionOracle: knows outside the store what each session may hold, whatever becomes of the
// process that saves it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_test_run.h"

namespace headrace::test {

/// Tokens of a session; nullopt: there is none.
using SessionVersion = std::optional<std::vector<TokenId>>;

/// What is no promise in the world of a test.
struct OracleExcuses {
  bool pages_may_be_lost = false;
  /// A save that was not acknowledged, was found, and has been synced by nobody yet: the power may
  /// still be lost.
  bool found_may_be_lost = false;
};

class SessionOracle {
 public:
  /// A save or, without tokens, a deletion is under way: from now on either may be found.
  void begin(const std::string& name, SessionVersion version) {
    versions_of(name).push_back(std::move(version));
  }
  /// The one begun last was acknowledged: only it may be found.
  void acknowledge(const std::string& name) {
    std::vector<SessionVersion>& versions = versions_of(name);
    versions.erase(versions.begin(), versions.end() - 1);
  }

  /// After a restart: every session is one that may be found, and all bytes that the store has of
  /// it are right. Of an acknowledged one it has all bytes.
  void expect_in(PageStore& store, const OracleExcuses& excuses = {}) {
    for (auto& [name, versions] : versions_) {
      SCOPED_TRACE("session " + name);
      const auto session = store.read_session(name);
      if (!session.ok()) {
        EXPECT_EQ(session.error().code, ErrorCode::not_found) << session.error().message;
      }
      const SessionVersion found =
          session.ok() ? SessionVersion(session->tokens) : SessionVersion();
      if (std::ranges::find(versions, found) == versions.end()) {
        ADD_FAILURE() << (found ? std::to_string(found->size()) + " tokens found" : "not found")
                      << ", which is none of " << versions.size() << " that may be there; the "
                      << "acknowledged one has " << (versions[0] ? versions[0]->size() : 0)
                      << " tokens";
        return;
      }
      const bool is_whole = versions.size() == 1 && !excuses.pages_may_be_lost;
      if (!excuses.found_may_be_lost) versions = {found};
      if (found) expect_right_bytes(store, *found, session->tenant, is_whole);
    }
  }

 private:
  static void expect_right_bytes(PageStore& store, const std::vector<TokenId>& tokens,
                                 const std::string& tenant, bool is_whole) {
    Reader reader(store, tokens, tenant);
    const std::uint32_t taken = reader.take_cached();
    if (is_whole) {
      EXPECT_EQ(taken + 1, tokens.size()) << "an acknowledged session has lost bytes";
    }
    const auto outcome = reader.read_all(19);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }

  std::vector<SessionVersion>& versions_of(const std::string& name) {
    return versions_.try_emplace(name, 1, std::nullopt).first->second;
  }

  std::map<std::string, std::vector<SessionVersion>> versions_;  // the acknowledged one first
};

inline SessionRecord session_named(const std::string& name) {
  SessionRecord session;
  session.name = name;
  return session;
}

/// A store that keeps what it reads, with little memory.
inline PageStoreOptions kept_store(std::uint32_t slots, std::uint64_t disk_pages) {
  PageStoreOptions options = small_store();
  options.reuse = true;
  options.keep_disk = true;
  options.disk_bytes = disk_tier_limit_bytes(options.shape, disk_pages);
  return with_slots(options, slots);
}

/// Begins as many others do: two of three texts have a part of their start in common.
inline std::vector<TokenId> text_with_a_common_start(std::uint64_t number) {
  std::mt19937_64 random(number);
  std::vector<TokenId> text = random_text(random() % 70, random() % 2);
  const std::vector<TokenId> rest = random_text(10 + random() % 60, number);
  text.insert(text.end(), rest.begin(), rest.end());
  return text;
}

/// Nothing lies in a directory that no store uses but what stays.
inline void expect_only_segments(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    EXPECT_TRUE(segment_number(name).has_value()) << "'" << name << "' was left behind";
  }
}

}  // namespace headrace::test
