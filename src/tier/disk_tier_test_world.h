// A kept disk tier in a world without threads, for tests that open it again and again.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "env/memory_env.h"
#include "tier/disk_tier.h"
#include "tier/tier_test_pages.h"

namespace headrace {

inline constexpr const char* test_directory = "/tmp/kv";

inline DiskTierOptions kept_options(std::uint64_t pages = 0) {
  return {.directory = test_directory,
          .limit_bytes = pages == 0 ? 0 : disk_tier_limit_bytes(small_shape, pages),
          .max_pages = 64,
          .max_records = 64,
          .shape = small_shape,
          .queue_depth = 8,
          .keep = true};
}

inline std::vector<std::byte> body_of(std::uint32_t number, std::size_t size = 300) {
  std::vector<std::byte> body(size);
  for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<std::byte>(number * 31 + i * 7);
  return body;
}

/// Opens tiers over `env`, whose jobs run on `memory`'s queue, and carries out one thing at a time.
class TierWorkbench {
 public:
  TierWorkbench(MemoryEnv& memory, Env& env, const DiskTierOptions& options)
      : memory_(memory), env_(env), options_(options) {}

  Result<void> open() {
    close();
    HEADRACE_TRY_ASSIGN(tier_, open_disk_tier(env_, options_));
    client_ = std::make_unique<TierClient>(*tier_);
    return {};
  }
  void close() {
    client_.reset();
    tier_.reset();
  }
  DiskTier& tier() { return *tier_; }
  TierClient& client() { return *client_; }

  Result<void> finish(const Result<TierTicket>& ticket) {
    if (!ticket.ok()) return ticket.error();
    memory_.run_pending();
    client_->poll();
    return client_->take(*ticket);
  }
  Result<void> put(const TestPage& page) {
    return finish(tier_->submit_put(page.identity, page.checksum, page.bytes));
  }
  Result<void> get(const TestPage& page) {
    std::vector<std::byte> target = empty_target(page.identity.shape);
    HEADRACE_TRY(finish(tier_->submit_get(page.identity, page.checksum, target)));
    EXPECT_EQ(target, page.bytes) << "a tier handed out wrong bytes";
    return {};
  }
  Result<void> put_record(RecordKind kind, std::uint64_t key, Bytes body) {
    return finish(tier_->submit_put_record(kind, {.low = key, .high = 1}, body));
  }
  Result<std::vector<std::byte>> record(RecordKind kind, std::uint64_t key) {
    return tier_->read_record(kind, {.low = key, .high = 1});
  }
  void erase_record(RecordKind kind, std::uint64_t key) {
    tier_->erase_record(kind, {.low = key, .high = 1});
  }
  Result<void> sync() { return finish(tier_->submit_sync()); }
  void compact(std::uint64_t budget_bytes = UINT64_MAX) {
    tier_->compact(budget_bytes);
    memory_.run_pending();
  }

 private:
  MemoryEnv& memory_;
  Env& env_;
  const DiskTierOptions options_;
  std::unique_ptr<DiskTier> tier_;
  std::unique_ptr<TierClient> client_;
};

inline std::vector<std::string> segment_files(Env& env) {
  std::vector<std::string> names;
  const auto all = env.list_directory(test_directory);
  if (!all.ok()) return names;
  for (const std::string& name : *all) {
    if (name.ends_with(".hrs")) names.push_back(std::string(test_directory) + "/" + name);
  }
  return names;
}

inline std::vector<std::byte> file_bytes(Env& env, const std::string& path) {
  const std::string text = env.read_file(path).value();
  const Bytes bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Makes the file hold exactly these bytes, durably.
inline void set_file(Env& env, const std::string& path, Bytes bytes) {
  if (env.exists(path)) {
    ASSERT_TRUE(env.remove_file(path).ok());
  }
  const auto file = env.open_file(path, OpenMode::create_new);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->write_at(0, std::span(&bytes, 1)).ok());
  ASSERT_TRUE((*file)->sync().ok());
}

}  // namespace headrace
