#include "tier/disk_tier.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "env/memory_env.h"
#include "env/scratch_directory.h"
#include "tier/tier_test_pages.h"

namespace headrace {
namespace {

constexpr const char* directory = "/tmp/kv";

DiskTierOptions small_options() {
  return {.directory = directory, .shape = small_shape, .queue_depth = 8};
}

/// A tier over files in memory whose IO happens when the test calls run().
class DiskTierTest : public testing::Test {
 protected:
  void open(const DiskTierOptions& options = small_options()) {
    auto tier = open_disk_tier(env_, options);
    ASSERT_TRUE(tier.ok()) << tier.error().message;
    tier_ = std::move(tier).value();
    client_.emplace(*tier_);
  }

  TierTicket submit_put(const TestPage& page) {
    auto ticket = tier_->submit_put(page.identity, page.checksum, page.bytes);
    EXPECT_TRUE(ticket.ok());
    return *ticket;
  }
  TierTicket submit_get(const TestPage& page, MutableBytes target) {
    auto ticket = tier_->submit_get(page.identity, page.checksum, target);
    EXPECT_TRUE(ticket.ok());
    return *ticket;
  }
  void run() {
    env_.run_pending();
    client_->poll();
  }
  std::string put(const TestPage& page) {
    const TierTicket ticket = submit_put(page);
    run();
    return outcome(client_->take(ticket));
  }
  std::string get(const TestPage& page) {
    std::vector<std::byte> target = empty_target(page.identity.shape);
    const auto ticket = tier_->submit_get(page.identity, page.checksum, target);
    if (!ticket.ok()) return to_string(ticket.error().code);
    run();
    const auto result = client_->take(*ticket);
    if (result.ok()) {
      EXPECT_EQ(target, page.bytes) << "wrong bytes";
    }
    return outcome(result);
  }

  std::vector<std::string> files() {
    auto names = env_.list_directory(directory);
    return names.ok() ? *names : std::vector<std::string>();
  }
  std::unique_ptr<File> page_file() {
    for (const std::string& name : files()) {
      if (!name.starts_with("pages-")) continue;
      return std::move(env_.open_file(std::string(directory) + "/" + name, OpenMode::read_write))
          .value();
    }
    ADD_FAILURE() << "no page file";
    return nullptr;
  }
  void write_file(const std::string& name) {
    ASSERT_TRUE(env_.make_directories(directory).ok());
    auto file = env_.open_file(std::string(directory) + "/" + name, OpenMode::create_new);
    ASSERT_TRUE(file.ok());
  }

  MemoryEnv env_{{.executors = ExecutorKind::manual}};
  std::unique_ptr<Tier> tier_;
  std::optional<TierClient> client_;
};

std::vector<std::byte> read_range(File& file, std::uint64_t offset, std::size_t size) {
  std::vector<std::byte> bytes(size);
  const MutableBytes part = bytes;
  EXPECT_TRUE(file.read_at(offset, {&part, 1}).ok());
  return bytes;
}

void write_range(File& file, std::uint64_t offset, Bytes bytes) {
  EXPECT_TRUE(file.write_at(offset, {&bytes, 1}).ok());
}

// --- damage on the device ---

TEST_F(DiskTierTest, AFlippedBitAnywhereInAStoredPageIsFound) {
  open();
  const TestPage page = test_page(1);
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < 112; ++i) offsets.push_back(i);                 // header fields
  for (std::size_t i = 112; i < 4096; i += 97) offsets.push_back(i);          // unused header bytes
  for (std::size_t i = 4096; i < 4096 + 1024; i += 13) offsets.push_back(i);  // payload
  offsets.push_back(4095);
  offsets.push_back(4096 + 1023);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    ASSERT_EQ(put(page), "ok");
    const auto file = page_file();
    auto byte = read_range(*file, offsets[i], 1);
    byte[0] ^= std::byte{1} << (i % 8);
    write_range(*file, offsets[i], byte);
    ASSERT_EQ(get(page), "corrupt") << "byte " << offsets[i];
    ASSERT_EQ(get(page), "not_found");  // dropped
  }
  EXPECT_EQ(tier_->stats().damaged, offsets.size());
  EXPECT_EQ(tier_->stats().pages, 0U);
}

TEST_F(DiskTierTest, TwoSwappedSlotsAreBothRefused) {
  open();
  ASSERT_EQ(put(test_page(1)), "ok");
  ASSERT_EQ(put(test_page(2)), "ok");
  ASSERT_EQ(put(test_page(3)), "ok");
  const auto file = page_file();
  const std::uint64_t slot_bytes = disk_tier_slot_bytes(small_shape);
  const std::size_t stored = 4096 + small_shape.bytes();
  const auto first = read_range(*file, 0, stored);
  const auto second = read_range(*file, slot_bytes, stored);
  write_range(*file, 0, second);
  write_range(*file, slot_bytes, first);
  EXPECT_EQ(get(test_page(1)), "corrupt");
  EXPECT_EQ(get(test_page(2)), "corrupt");
  EXPECT_EQ(get(test_page(3)), "ok");
}

TEST_F(DiskTierTest, AnOldPagePutBackIntoItsSlotIsRefused) {
  open();
  TestPage page = test_page(1);
  ASSERT_EQ(put(page), "ok");
  const auto file = page_file();
  const auto old = read_range(*file, 0, 4096 + small_shape.bytes());
  tier_->erase(page.identity.key);
  page.bytes[0] ^= std::byte{1};
  page.checksum = hash_bytes(page.bytes);
  ASSERT_EQ(put(page), "ok");
  write_range(*file, 0, old);
  EXPECT_EQ(get(page), "corrupt");
}

TEST_F(DiskTierTest, AFileCutShortAtAnyLengthIsFound) {
  open();
  const TestPage page = test_page(1);
  const std::uint64_t stored = 4096 + small_shape.bytes();
  for (std::uint64_t length = 0; length < stored; length += length < 128 ? 1 : 61) {
    ASSERT_EQ(put(page), "ok");
    ASSERT_TRUE(page_file()->truncate(length).ok());
    ASSERT_EQ(get(page), "corrupt") << length;
  }
}

TEST_F(DiskTierTest, ADamagedPageIsDroppedWithAllItsSharesAndCanBePutAnew) {
  open();
  const TestPage page = test_page(1);
  ASSERT_EQ(put(page), "ok");
  ASSERT_EQ(put(page), "ok");
  write_range(*page_file(), 5000, std::array{std::byte{0}, std::byte{0}});
  std::vector<std::byte> target = empty_target();
  std::vector<std::byte> other_target = empty_target();
  const TierTicket first = submit_get(page, target);
  const TierTicket second = submit_get(page, other_target);
  env_.run_pending();
  client_->poll();
  EXPECT_EQ(outcome(client_->take(first)), "corrupt");
  EXPECT_EQ(outcome(client_->take(second)), "corrupt");
  EXPECT_EQ(get(page), "not_found");
  EXPECT_EQ(put(page), "ok");
  EXPECT_EQ(get(page), "ok");
  EXPECT_EQ(tier_->stats().bytes, disk_tier_slot_bytes(small_shape));
}

// --- schedules ---

TEST_F(DiskTierTest, APageBeingWrittenIsReadFromItsPut) {
  open();
  const TestPage page = test_page(1);
  std::vector<std::byte> target = empty_target();
  const TierTicket put_ticket = submit_put(page);
  const TierTicket get_ticket = submit_get(page, target);
  client_->poll();  // no IO has happened yet
  EXPECT_EQ(outcome(client_->take(get_ticket)), "ok");
  EXPECT_EQ(target, page.bytes);
  EXPECT_FALSE(client_->has(put_ticket));
  run();
  EXPECT_EQ(outcome(client_->take(put_ticket)), "ok");
}

TEST_F(DiskTierTest, AWrittenButWrongPageIsRefusedWhileItIsBeingWritten) {
  open();
  const TestPage page = test_page(1);
  TestPage other = page;
  other.checksum.low ^= 1;
  std::vector<std::byte> target = empty_target();
  const TierTicket put_ticket = submit_put(page);
  const TierTicket get_ticket = submit_get(other, target);
  run();
  EXPECT_EQ(outcome(client_->take(get_ticket)), "corrupt");
  EXPECT_EQ(outcome(client_->take(put_ticket)), "ok");
  EXPECT_EQ(get(page), "not_found");
  EXPECT_EQ(put(test_page(2)), "ok");
  EXPECT_EQ(tier_->stats().bytes, disk_tier_slot_bytes(small_shape));  // the slot was free again
}

TEST_F(DiskTierTest, APutThatJoinsAWriteEndsAsTheWriteDoes) {
  open();
  const TestPage page = test_page(1);
  for (const bool room : {false, true}) {
    env_.set_capacity(room ? 1 << 20 : 100);
    const TierTicket first = submit_put(page);
    const TierTicket second = submit_put(page);
    client_->poll();
    EXPECT_FALSE(client_->has(second));  // not before the bytes are there
    run();
    EXPECT_EQ(outcome(client_->take(first)), room ? "ok" : "out_of_budget");
    EXPECT_EQ(outcome(client_->take(second)), room ? "ok" : "out_of_budget");
    EXPECT_EQ(tier_->stats().pages, room ? 1U : 0U);
  }
  tier_->erase(page.identity.key);
  EXPECT_EQ(get(page), "ok");  // two shares
}

TEST_F(DiskTierTest, APageErasedWhileItIsWrittenIsFreedAfterwards) {
  open();
  const TestPage page = test_page(1);
  const TierTicket first = submit_put(page);
  tier_->erase(page.identity.key);
  EXPECT_EQ(get(page), "not_found");
  const TierTicket second = submit_put(page);  // another slot: the first is still being written
  run();
  EXPECT_EQ(outcome(client_->take(first)), "ok");
  EXPECT_EQ(outcome(client_->take(second)), "ok");
  EXPECT_EQ(tier_->stats().pages, 1U);
  EXPECT_EQ(tier_->stats().bytes, 2 * disk_tier_slot_bytes(small_shape));
  EXPECT_EQ(get(page), "ok");
  EXPECT_EQ(put(test_page(2)), "ok");  // into the first slot
  EXPECT_EQ(tier_->stats().bytes, 2 * disk_tier_slot_bytes(small_shape));
}

TEST_F(DiskTierTest, APageErasedWhileItIsReadKeepsItsSlotUntilThen) {
  open();
  const TestPage page = test_page(1);
  ASSERT_EQ(put(page), "ok");
  std::vector<std::byte> target = empty_target();
  const TierTicket ticket = submit_get(page, target);
  tier_->erase(page.identity.key);
  const TestPage other = test_page(2);
  const TierTicket other_ticket = submit_put(other);
  run();
  EXPECT_EQ(outcome(client_->take(ticket)), "ok");
  EXPECT_EQ(target, page.bytes);
  EXPECT_EQ(outcome(client_->take(other_ticket)), "ok");
  EXPECT_EQ(tier_->stats().bytes, 2 * disk_tier_slot_bytes(small_shape));
}

TEST_F(DiskTierTest, ItEndsInGoodOrderWithIoInFlightAndUnpolled) {
  open();
  const TestPage page = test_page(1);
  const TestPage other = test_page(2);
  submit_put(page);
  env_.run_pending();
  submit_put(other);
  tier_.reset();
  EXPECT_FALSE(env_.exists(directory));
}

// --- room ---

TEST_F(DiskTierTest, AfterAFullDeviceEarlierPagesAreThereAndLaterPutsWork) {
  open();
  env_.set_capacity(3 * disk_tier_slot_bytes(small_shape) + 4096 + 7);  // the fourth ends mid-way
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_EQ(put(test_page(i)), "ok");
  EXPECT_EQ(put(test_page(3)), "out_of_budget");
  EXPECT_EQ(get(test_page(3)), "not_found");
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(get(test_page(i)), "ok");
  tier_->erase(test_page(1).identity.key);
  EXPECT_EQ(put(test_page(3)), "ok");  // in the place of page 1
  env_.set_capacity(1 << 20);
  EXPECT_EQ(put(test_page(4)), "ok");
  for (const std::uint32_t i : {0U, 2U, 3U, 4U}) EXPECT_EQ(get(test_page(i)), "ok");
}

TEST_F(DiskTierTest, TheLimitCountsHeadersAndPadding) {
  DiskTierOptions options = small_options();
  options.limit_bytes = 2 * 8192 - 1;  // 4096 of header, 1024 of payload in 4096
  open(options);
  EXPECT_EQ(put(test_page(1)), "ok");
  EXPECT_EQ(put(test_page(2)), "out_of_budget");
  EXPECT_LE(*page_file()->size(), options.limit_bytes);
}

TEST_F(DiskTierTest, MaxPagesBoundsThePagesAndTheMemory) {
  DiskTierOptions options = small_options();
  options.max_pages = 2;
  open(options);
  EXPECT_EQ(put(test_page(1)), "ok");
  EXPECT_EQ(put(test_page(2)), "ok");
  EXPECT_EQ(put(test_page(3)), "out_of_budget");
  EXPECT_EQ(tier_->memory_bytes(), disk_tier_memory_bytes(options));
  EXPECT_LT(tier_->memory_bytes(), 8 * 4096U + 4096U);
}

TEST_F(DiskTierTest, ALimitBelowOnePageIsRefusedWithTheLeastThatWorks) {
  DiskTierOptions options = small_options();
  options.limit_bytes = 8191;
  const auto tier = open_disk_tier(env_, options);
  ASSERT_FALSE(tier.ok());
  EXPECT_EQ(tier.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(tier.error().message.find("give at least 8"), std::string::npos)
      << tier.error().message;
  EXPECT_FALSE(env_.exists(directory));
}

// --- the directory ---

TEST_F(DiskTierTest, ARunWithoutPutsWritesNoPageFile) {
  open();
  EXPECT_EQ(files(), std::vector<std::string>{"headrace.lock"});
  tier_.reset();
  EXPECT_FALSE(env_.exists(directory));
}

TEST_F(DiskTierTest, DirectoriesThatItMadeAreRemovedAndOthersStay) {
  ASSERT_TRUE(env_.make_directories("/tmp/mine").ok());
  for (const char* path : {"/tmp/mine/a/b", "/tmp/mine/a/b/", "/tmp/mine"}) {
    DiskTierOptions options = small_options();
    options.directory = path;
    open(options);
    EXPECT_EQ(put(test_page(1)), "ok");
    tier_.reset();
    EXPECT_EQ(*env_.list_directory("/tmp/mine"), std::vector<std::string>()) << path;
  }
}

TEST_F(DiskTierTest, StalePageFilesAreRemovedAndForeignFilesAreNot) {
  const std::vector<std::string> foreign = {"notes.txt", "pages-0123456789abcdef.hrp.bak",
                                            "pages-0123456789abcdeg.hrp", "pages-all.hrp"};
  for (const std::string& name : foreign) write_file(name);
  write_file("pages-0123456789abcdef.hrp");
  write_file("pages-ffffffffffffffff.hrp");
  write_file("headrace.lock");
  open();
  EXPECT_EQ(put(test_page(1)), "ok");
  EXPECT_EQ(files().size(), foreign.size() + 2);  // the lock and our page file
  tier_.reset();
  EXPECT_EQ(files(), foreign);
}

TEST_F(DiskTierTest, ADirectoryInWhichSomebodyHasPutAFileStays) {
  open();
  write_file("notes.txt");
  tier_.reset();
  EXPECT_EQ(files(), std::vector<std::string>{"notes.txt"});
}

TEST_F(DiskTierTest, ASecondTierOnTheDirectoryIsRefusedAndDoesNoHarm) {
  open();
  ASSERT_EQ(put(test_page(1)), "ok");
  const auto second = open_disk_tier(env_, small_options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::io);
  EXPECT_NE(second.error().message.find("--kv-disk: cannot use '/tmp/kv'"), std::string::npos);
  EXPECT_NE(second.error().message.find("choose another directory"), std::string::npos);
  EXPECT_EQ(get(test_page(1)), "ok");
  tier_.reset();
  open();
  EXPECT_EQ(put(test_page(1)), "ok");
}

TEST(DiskTierOnFiles, ASecondTierOnTheDirectoryIsRefusedUntilTheFirstIsGone) {
  auto scratch = ScratchDirectory::create(posix_env());
  ASSERT_TRUE(scratch.ok());
  DiskTierOptions options = small_options();
  options.directory = scratch->file("kv");
  auto first = open_disk_tier(posix_env(), options);
  ASSERT_TRUE(first.ok()) << first.error().message;
  const auto second = open_disk_tier(posix_env(), options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::io);
  first->reset();
  EXPECT_FALSE(posix_env().exists(options.directory));
  EXPECT_TRUE(open_disk_tier(posix_env(), options).ok());
}

TEST_F(DiskTierTest, APathThatIsAFileOrEmptyIsRefused) {
  write_file("file");
  for (const char* path : {"/tmp/kv/file", "/tmp/kv/file/below", ""}) {
    DiskTierOptions options = small_options();
    options.directory = path;
    const auto tier = open_disk_tier(env_, options);
    ASSERT_FALSE(tier.ok()) << path;
    EXPECT_TRUE(tier.error().message.starts_with("--kv-disk: ")) << tier.error().message;
  }
  EXPECT_EQ(files(), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace headrace
