// What a store finds that another one left: after its end, after a crash, and of sessions.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cache/cache_test_env.h"
#include "cache/cache_test_run.h"
#include "cache/session_store.h"
#include "env/fault_env.h"

namespace headrace {
namespace {

PageStoreOptions kept_store() {
  PageStoreOptions options = small_store();
  options.reuse = true;
  options.keep_disk = true;
  options.context = 160;
  options.disk_bytes = 4 << 20;
  return options;
}

std::uint32_t read_with_cache(Reader& reader) {
  const std::uint32_t taken = reader.take_cached();
  const auto outcome = reader.read_all(23);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  return taken;
}

void read_and_leave(Env& env, const PageStoreOptions& options, const std::vector<TokenId>& text) {
  const auto store = open_store(env, options);
  Reader reader(*store, text);
  read_with_cache(reader);
}

SessionRecord named(const std::string& name) {
  SessionRecord session;
  session.name = name;
  session.note = "a note";
  return session;
}

TEST(KeptStore, ALaterProcessTakesOverWhatWasRead) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(100, 1);
  read_and_leave(env, kept_store(), text);
  const auto store = open_store(env, kept_store());
  Auditor auditor(*store);
  Reader again(*store, text);
  EXPECT_EQ(read_with_cache(again), 99U) << "full blocks, and all of the last one but a token";
  EXPECT_EQ(store->stats().pages_filled_from_disk, 3U * 7);
  auditor.expect_in_order({&again.sequence()});
}

TEST(KeptStore, WithLittleMemoryToo) {
  ImmediateEnv env;
  PageStoreOptions options = kept_store();
  options.context = 1'600;
  options = with_slots(options, 12);
  const std::vector<TokenId> text = random_text(100, 1);
  read_and_leave(env, options, text);
  const auto store = open_store(env, options);
  Auditor auditor(*store);
  Reader again(*store, text);
  EXPECT_EQ(read_with_cache(again), 99U);
  auditor.expect_in_order({&again.sequence()});
}

TEST(KeptStore, GivesNothingToOtherModelsTypesOrKernels) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(100, 1);
  read_and_leave(env, kept_store(), text);
  const auto expect_nothing = [&](const PageStoreOptions& other) {
    const auto store = open_store(env, other);
    Reader reader(*store, text);
    EXPECT_EQ(read_with_cache(reader), 0U);
  };
  PageStoreOptions other = kept_store();
  other.model.low += 1;
  expect_nothing(other);
  other = kept_store();
  other.numerics.low += 1;
  expect_nothing(other);
  other = kept_store();
  other.shape.type = KvType::f32;
  expect_nothing(other);
  const auto store = open_store(env, kept_store());
  Reader reader(*store, text);
  EXPECT_EQ(read_with_cache(reader), 99U) << "and keeps it for its own";
}

TEST(KeptStore, WithoutKeepNothingStays) {
  ImmediateEnv env;
  PageStoreOptions options = kept_store();
  options.keep_disk = false;
  read_and_leave(env, options, random_text(100, 1));
  EXPECT_FALSE(env.exists("/tmp/kv"));
}

TEST(Sessions, ASavedTextIsThereThoughTheProcessWasKilled) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(100, 1);
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    while (reader.position() < 90) ASSERT_TRUE(reader.read(15).ok());
    const auto saved = reader.sequence().save(named("monday"));
    ASSERT_TRUE(saved.ok()) << saved.error().message;
    ASSERT_TRUE(reader.read_all(3).ok()) << "and it goes on";
    env.crash();
  }
  const auto later = open_store(env, kept_store());
  const auto session = later->read_session("monday");
  ASSERT_TRUE(session.ok()) << session.error().message;
  EXPECT_EQ(session->note, "a note");
  EXPECT_EQ(session->tokens, std::vector<TokenId>(text.begin(), text.begin() + 90));
  Reader again(*later, text);
  EXPECT_EQ(again.take_cached(), 90U) << "nothing is read again";
  ASSERT_TRUE(again.read_all(7).ok());
}

TEST(Sessions, TheNewestSaveCountsAndItsTailTakesTheOldOnesPlace) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(100, 1);
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    for (const std::size_t end : {20, 25, 31, 70}) {
      while (reader.position() < end) {
        ASSERT_TRUE(reader.read(std::min<std::size_t>(9, end - reader.position())).ok());
      }
      ASSERT_TRUE(reader.sequence().save(named("s")).ok());
    }
  }
  const auto store = open_store(env, kept_store());
  EXPECT_EQ(store->read_session("s")->tokens.size(), 70U);
  EXPECT_EQ(store->index().blocks(), 5U) << "four full ones and one tail";
}

TEST(Sessions, WhatAConversationNeedsDoesNotMakeRoomForOthers) {
  ImmediateEnv env;
  PageStoreOptions options = kept_store();
  options.disk_bytes = disk_tier_limit_bytes(options.shape, 40);
  const std::vector<TokenId> text = random_text(60, 1);
  {
    const auto store = open_store(env, options);
    Reader reader(*store, text);
    read_with_cache(reader);
    ASSERT_TRUE(reader.sequence().save(named("s")).ok());
  }
  for (std::uint64_t other = 2; other < 12; ++other) {
    read_and_leave(env, options, random_text(100, other));
  }
  const auto store = open_store(env, options);
  Reader reader(*store, text);
  EXPECT_EQ(reader.take_cached(), 59U);
}

TEST(KeptStore, TheLimitOfTheDiskGoesDownAndUpWhileRunning) {
  ImmediateEnv env;
  PageStoreOptions options = kept_store();
  const auto store = open_store(env, options);
  for (std::uint64_t text = 1; text <= 6; ++text) {
    Reader reader(*store, random_text(100, text));
    read_with_cache(reader);
    if (text == 2 || text == 3) {
      ASSERT_TRUE(reader.sequence().save(named(text == 2 ? "s" : "t")).ok());
    }
  }
  const std::uint64_t least = disk_tier_limit_bytes(options.shape, 40);
  ASSERT_TRUE(store->set_disk_bytes(least * 2).ok());
  ASSERT_TRUE(store->set_disk_bytes(least * 4).ok());
  const auto refused = store->set_disk_bytes(100 * 1024);
  ASSERT_FALSE(refused.ok()) << "two sessions do not fit";
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_budget);
  Reader again(*store, random_text(100, 2));
  EXPECT_EQ(again.take_cached(), 99U) << "what is saved stays";
}

TEST(Sessions, SayWhatIsWrong) {
  ImmediateEnv env;
  const auto store = open_store(env, kept_store());
  EXPECT_EQ(store->read_session("none").error().code, ErrorCode::not_found);
  Reader reader(*store, random_text(20, 1));
  ASSERT_TRUE(reader.read_all(20).ok());
  const std::vector<std::string> bad_names = {"",    "../up", "a b",
                                              "a/b", "tab\t", std::string(65, 'a')};
  for (const std::string& name : bad_names) {
    EXPECT_EQ(reader.sequence().save(named(name)).error().code, ErrorCode::invalid_argument)
        << name;
  }
  EXPECT_TRUE(reader.sequence().save(named(std::string(64, 'a'))).ok());

  PageStoreOptions scratch = kept_store();
  scratch.keep_disk = false;
  scratch.disk_directory = "/tmp/other";
  const auto other = open_store(env, scratch);
  Reader there(*other, random_text(20, 1));
  ASSERT_TRUE(there.read_all(20).ok());
  const auto refused = there.sequence().save(named("s"));
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("--kv-disk"), std::string::npos);
}

// Every operation of a save fails once: then either it says so, or the session is there.
TEST(Sessions, ASaveThatFailsSaysSoAndTheOneBeforeIsStillThere) {
  const std::vector<TokenId> text = random_text(60, 1);
  for (std::uint64_t at = 1; at < 40; ++at) {
    for (const EnvOperation operation : {EnvOperation::write, EnvOperation::sync}) {
      SCOPED_TRACE(std::string(to_string(operation)) + " " + std::to_string(at));
      ImmediateEnv memory;
      FaultEnv env(memory);
      bool saved = false;
      {
        const auto store = open_store(env, kept_store());
        Reader reader(*store, text);
        ASSERT_TRUE(reader.read(20).ok());
        ASSERT_TRUE(reader.sequence().save(named("s")).ok());
        ASSERT_TRUE(reader.read_all(20).ok());
        env.set_plan({{.operation = operation, .at = at}});
        saved = reader.sequence().save(named("s")).ok();
        env.set_plan({});
      }
      const auto store = open_store(memory, kept_store());
      const auto session = store->read_session("s");
      ASSERT_TRUE(session.ok()) << session.error().message;
      if (saved) {
        EXPECT_EQ(session->tokens.size(), 60U);
      }
      Reader again(*store, text);
      read_with_cache(again);
    }
  }
}

// A page that a process before left may be torn, and is read first when it is saved anew.
TEST(Sessions, ASaveRestoresWhatAProcessBeforeLeftDamaged) {
  const std::vector<TokenId> text = random_text(60, 1);
  for (const bool adopts : {false, true}) {
    for (std::uint64_t at = 1; at < 30; ++at) {
      SCOPED_TRACE((adopts ? "adopted, read " : "read again, read ") + std::to_string(at));
      ImmediateEnv memory;
      read_and_leave(memory, kept_store(), text);
      {
        FaultEnv env(memory);
        const auto store = open_store(env, kept_store());
        Auditor auditor(*store);
        Reader reader(*store, text);
        if (adopts) {
          ASSERT_EQ(reader.take_cached(), 59U);
        } else {
          ASSERT_TRUE(reader.read_all(20).ok());
        }
        env.set_plan({{.operation = EnvOperation::read, .at = at, .kind = FaultKind::flip_bit}});
        const auto saved = reader.save(named("s"));
        ASSERT_TRUE(saved.ok()) << saved.error().message;
        auditor.expect_in_order({&reader.sequence()});
        memory.crash();
      }
      const auto store = open_store(memory, kept_store());
      Reader again(*store, store->read_session("s")->tokens);
      EXPECT_EQ(again.take_cached() + 1, adopts ? 59U : 60U) << "an acknowledged save lost bytes";
      ASSERT_TRUE(again.read_all(7).ok());
    }
  }
}

TEST(SessionStore, ListsCopiesAndDeletesWithoutAModel) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(60, 1);
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    read_with_cache(reader);
    ASSERT_TRUE(reader.sequence().save(named("monday")).ok());
  }
  const auto sessions = SessionStore::open(env, "/tmp/kv").value();
  ASSERT_EQ(sessions->list()->size(), 1U);
  EXPECT_EQ(sessions->read("monday")->tokens, text);
  ASSERT_TRUE(sessions->fork("monday", "tuesday").ok());
  EXPECT_FALSE(sessions->fork("monday", "tuesday").ok()) << "there is one";
  EXPECT_EQ(sessions->list()->size(), 2U);
  ASSERT_TRUE(sessions->erase("monday", true).ok());
  EXPECT_EQ(sessions->read("monday").error().code, ErrorCode::not_found);
  EXPECT_EQ(sessions->erase("monday", true).error().code, ErrorCode::not_found);
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    EXPECT_EQ(reader.take_cached(), 59U) << "the copy has the blocks still";
  }
  ASSERT_TRUE(sessions->erase("tuesday", false).ok());
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    EXPECT_EQ(reader.take_cached(), 59U) << "a later prompt may use them";
    ASSERT_TRUE(reader.read_all(7).ok());
    ASSERT_TRUE(reader.sequence().save(named("again")).ok());
  }
  ASSERT_TRUE(sessions->erase("again", true).ok());
  const auto store = open_store(env, kept_store());
  Reader reader(*store, text);
  EXPECT_EQ(reader.take_cached(), 0U) << "purged";
}

// A device that does not give what is stored says nothing about it: neither that a session is not
// there, nor that an older version is the newest, nor that blocks without a parent are of no use.
TEST(SessionStore, ADeviceThatFailsOnceHidesAndDestroysNothing) {
  const std::vector<TokenId> text = random_text(100, 1);
  for (std::uint64_t at = 1; at < 200; ++at) {
    SCOPED_TRACE("read " + std::to_string(at));
    ImmediateEnv memory;
    {
      const auto store = open_store(memory, kept_store());
      Reader reader(*store, text);
      for (const std::size_t end : {40, 100}) {
        while (reader.position() < end) ASSERT_TRUE(reader.read(20).ok());
        ASSERT_TRUE(reader.sequence().save(named("s")).ok());
      }
    }
    FaultEnv env(memory);
    env.set_plan({{.operation = EnvOperation::read, .at = at}});
    const auto sessions = SessionStore::open(env, "/tmp/kv");
    if (sessions.ok()) {
      const auto session = (*sessions)->read("s");
      if (session.ok()) {
        EXPECT_EQ(session->tokens, text) << "an older version";
      } else {
        EXPECT_EQ(session.error().code, ErrorCode::io) << session.error().message;
      }
    }
    // It may be refused, and whether or not it is, a later process finds everything.
    static_cast<void>(PageStore::open(env, kept_store()));
    const auto store = open_store(memory, kept_store());
    Reader reader(*store, text);
    EXPECT_EQ(reader.take_cached(), 99U);
    if (testing::Test::HasFailure()) return;
  }
}

// A session that is not given now has its blocks all the same.
TEST(SessionStore, ADeviceThatFailsOnceDoesNotCostTheBlocksOfASession) {
  PageStoreOptions options = kept_store();
  options.disk_bytes = disk_tier_limit_bytes(options.shape, 40);
  const std::vector<TokenId> text = random_text(60, 1);
  for (const bool purges : {false, true}) {
    bool is_hit = true;
    for (std::uint64_t at = 1; is_hit; ++at) {
      SCOPED_TRACE((purges ? "purge, read " : "full disk, read ") + std::to_string(at));
      ImmediateEnv memory;
      {
        const auto store = open_store(memory, options);
        Reader reader(*store, text);
        ASSERT_TRUE(reader.read_all(20).ok());
        if (purges) {
          ASSERT_TRUE(reader.sequence().save(named("s")).ok());
        }
        ASSERT_TRUE(reader.sequence().save(named("t")).ok());
      }
      FaultEnv env(memory);
      env.set_plan({{.operation = EnvOperation::read, .at = at}});
      if (purges) {
        const auto sessions = SessionStore::open(env, "/tmp/kv");
        if (sessions.ok()) static_cast<void>((*sessions)->erase("s", true));
        is_hit = env.faults() > 0;
      } else {
        const auto store = PageStore::open(env, options);
        is_hit = env.faults() > 0;
        env.set_plan({});
        for (std::uint64_t other = 2; store.ok() && other < 5; ++other) {
          Reader reader(**store, random_text(100, other));
          ASSERT_TRUE(reader.read_all(20).ok());
        }
      }
      const auto store = open_store(memory, options);
      Reader reader(*store, store->read_session("t")->tokens);
      EXPECT_EQ(reader.take_cached(), 59U);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(SessionStore, WhatItDeletedStaysDeletedThroughACrash) {
  for (const bool purge : {false, true}) {
    {
      SCOPED_TRACE(purge ? "purge" : "keep");
      ImmediateEnv env;
      {
        const auto store = open_store(env, kept_store());
        for (const char* name : {"monday", "tuesday"}) {
          Reader reader(*store, random_text(60, name[0]));
          read_with_cache(reader);
          ASSERT_TRUE(reader.sequence().save(named(name)).ok());
        }
      }
      const auto sessions = SessionStore::open(env, "/tmp/kv").value();
      ASSERT_TRUE(sessions->fork("monday", "copy").ok());
      ASSERT_TRUE(sessions->export_to("tuesday", "/tmp/tuesday.hrs").ok());
      ASSERT_TRUE(sessions->erase("tuesday", true).ok());
      ASSERT_TRUE(sessions->import_from("/tmp/tuesday.hrs").ok());
      ASSERT_TRUE(sessions->erase("monday", purge).ok());
      env.crash();
      const auto store = open_store(env, kept_store());
      EXPECT_EQ(store->read_session("monday").error().code, ErrorCode::not_found);
      EXPECT_TRUE(store->read_session("copy").ok());
      EXPECT_TRUE(store->read_session("tuesday").ok());
    }
  }
}

TEST(SessionStore, CarriesASessionToAnotherDirectory) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(60, 1);
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    read_with_cache(reader);
    ASSERT_TRUE(reader.sequence().save(named("monday")).ok());
  }
  PageStoreOptions there = kept_store();
  there.disk_directory = "/tmp/there";
  read_and_leave(env, there, random_text(40, 2));
  const auto from = SessionStore::open(env, "/tmp/kv").value();
  const auto to = SessionStore::open(env, "/tmp/there").value();
  ASSERT_TRUE(from->export_to("monday", "/tmp/monday.hrs").ok());
  EXPECT_FALSE(from->export_to("monday", "/tmp/monday.hrs").ok()) << "no file is overwritten";
  const auto imported = to->import_from("/tmp/monday.hrs");
  ASSERT_TRUE(imported.ok()) << imported.error().message;
  EXPECT_EQ(*imported, "monday");
  EXPECT_FALSE(to->import_from("/tmp/monday.hrs").ok()) << "there is one";
  const auto store = open_store(env, there);
  EXPECT_EQ(store->read_session("monday")->tokens, text);
  Reader reader(*store, text);
  EXPECT_EQ(reader.take_cached(), 59U);
  ASSERT_TRUE(reader.read_all(1).ok());
}

TEST(SessionStore, AnExportedFileThatIsDamagedGivesNoWrongBytes) {
  ImmediateEnv env;
  const std::vector<TokenId> text = random_text(40, 1);
  {
    const auto store = open_store(env, kept_store());
    Reader reader(*store, text);
    read_with_cache(reader);
    ASSERT_TRUE(reader.sequence().save(named("s")).ok());
  }
  ASSERT_TRUE(SessionStore::open(env, "/tmp/kv").value()->export_to("s", "/tmp/s.hrs").ok());
  const std::string whole = env.read_file("/tmp/s.hrs").value();
  for (std::size_t at = 0; at < whole.size(); at += 37) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    if (at % 2 == 1) damaged.resize(at);
    ImmediateEnv other;
    auto file = other.open_file("/tmp/s.hrs", OpenMode::create_new).value();
    const Bytes bytes = std::as_bytes(std::span(damaged));
    ASSERT_TRUE(file->write_at(0, {&bytes, 1}).ok());
    {
      open_store(other, kept_store());
    }
    read_and_leave(other, kept_store(), random_text(20, 9));
    const auto imported = SessionStore::open(other, "/tmp/kv").value()->import_from("/tmp/s.hrs");
    if (!imported.ok()) continue;
    const auto store = open_store(other, kept_store());
    EXPECT_EQ(store->read_session("s")->tokens, text);
    Reader reader(*store, text);
    read_with_cache(reader);
  }
}

}  // namespace
}  // namespace headrace
