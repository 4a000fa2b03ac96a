#include "tier/disk_tier.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/log.h"
#include "tier/slot_map.h"
#include "tier/tier_directory.h"

namespace headrace {
namespace {

// A submission from submit_*() until its completion has been polled. The engine thread fills it,
// one worker carries it out and sets `result`, the engine thread settles it. It changes hands
// through the executor's queue and through `finished_`.
struct Operation {
  enum class Kind {
    answered,  ///< decided when it was submitted
    write,
    read,
    join,  ///< a put of a page that another operation is writing: ends as that one does
  };
  Kind kind = Kind::answered;
  TierTicket ticket = 0;
  FileSlot slot = 0;  ///< pinned by write and read
  PageIdentity identity = {};
  Digest128 checksum = {};
  Bytes source = {};         ///< of write
  MutableBytes target = {};  ///< of read
  Result<void> result = {};
};

using OperationIndex = std::uint32_t;

std::uint32_t slot_count(const DiskTierOptions& options) {
  std::uint64_t slots = options.max_pages > 0 ? options.max_pages : disk_tier_pages_default;
  if (options.limit_bytes > 0) {
    slots = std::min(slots, options.limit_bytes / disk_tier_slot_bytes(options.shape));
  }
  return static_cast<std::uint32_t>(slots);
}

class DiskTier final : public Tier {
 public:
  DiskTier(Env& env, const DiskTierOptions& options, std::unique_ptr<TierDirectory> directory,
           AlignedBuffer headers)
      : options_(options),
        slot_bytes_(disk_tier_slot_bytes(options.shape)),
        memory_bytes_(disk_tier_memory_bytes(options)),
        directory_(std::move(directory)),
        headers_(std::move(headers)),
        operations_(options.queue_depth),
        slots_(slot_count(options)),
        finished_(options.queue_depth),
        executor_(env.new_executor(options.io_threads)) {
    free_operations_.reserve(options.queue_depth);
    for (OperationIndex i = options.queue_depth; i > 0; --i) free_operations_.push_back(i - 1);
  }

  ~DiskTier() override {
    executor_.reset();  // waits for the jobs, which use all the rest
    file_.reset();
  }

  Result<TierTicket> submit_put(const PageIdentity& identity, const Digest128& checksum,
                                Bytes payload) override;
  Result<TierTicket> submit_get(const PageIdentity& identity, const Digest128& checksum,
                                MutableBytes payload) override;
  void erase(const PageKey& key) override;
  std::size_t poll(std::span<TierCompletion> out) override;
  void wait() override;
  std::uint64_t memory_bytes() const override { return memory_bytes_; }
  void drop_cache() override;
  TierStats stats() const override;

 private:
  // Engine thread.
  std::optional<OperationIndex> begin(const PageIdentity& identity, const Digest128& checksum);
  TierTicket answer(OperationIndex index, Result<void> result);
  TierTicket start(OperationIndex index);
  Result<FileSlot> take_slot(const PageKey& key);
  const Operation* writer_of(FileSlot slot) const;
  void settle(Operation& operation);
  void settle_joined(FileSlot slot, const Result<void>& result);

  // Worker threads.
  void carry_out(OperationIndex index);
  Result<void> write_page(const Operation& operation, MutableBytes header);
  Result<void> read_page(const Operation& operation, MutableBytes header);

  // Any thread.
  void push_finished(OperationIndex index);
  std::optional<OperationIndex> pop_finished();
  std::uint64_t offset_of(FileSlot slot) const { return slot * slot_bytes_; }

  // Constant after construction.
  const DiskTierOptions options_;
  const std::uint64_t slot_bytes_;
  const std::uint64_t memory_bytes_;
  const std::unique_ptr<TierDirectory> directory_;

  // Made before the first job and constant from then on.
  std::unique_ptr<File> file_;

  // By operation; each belongs to the thread that has the operation.
  AlignedBuffer headers_;
  std::vector<Operation> operations_;

  // Engine thread only.
  SlotMap slots_;
  std::vector<OperationIndex> free_operations_;
  TierTicket next_ticket_ = 1;
  TierStats counters_;  // puts, gets, damaged

  // Guarded by mutex_: a ring of at most queue_depth operations, oldest first.
  std::mutex mutex_;
  std::condition_variable finished_changed_;
  std::vector<OperationIndex> finished_;
  std::size_t finished_first_ = 0;
  std::size_t finished_count_ = 0;

  std::unique_ptr<Executor> executor_;
};

Result<TierTicket> DiskTier::submit_put(const PageIdentity& identity, const Digest128& checksum,
                                        Bytes payload) {
  HEADRACE_CHECK(identity.shape == options_.shape, "every page of a tier has the same shape");
  HEADRACE_CHECK(payload.size() == options_.shape.bytes(), "a payload is one page");
  const auto index = begin(identity, checksum);
  if (!index) return Error{ErrorCode::out_of_budget, "the disk tier's queue is full"};
  Operation& operation = operations_[*index];

  if (const auto slot = slots_.find(identity.key)) {
    slots_.share(*slot);
    if (writer_of(*slot) == nullptr) return answer(*index, {});
    operation.kind = Operation::Kind::join;
    operation.slot = *slot;
    return operation.ticket;
  }
  auto slot = take_slot(identity.key);
  if (!slot.ok()) return answer(*index, std::move(slot).error());
  operation.kind = Operation::Kind::write;
  operation.slot = *slot;
  operation.source = payload;
  return start(*index);
}

Result<TierTicket> DiskTier::submit_get(const PageIdentity& identity, const Digest128& checksum,
                                        MutableBytes payload) {
  HEADRACE_CHECK(identity.shape == options_.shape, "every page of a tier has the same shape");
  HEADRACE_CHECK(payload.size() == options_.shape.bytes(), "a payload is one page");
  const auto slot = slots_.find(identity.key);
  if (!slot) return Error{ErrorCode::not_found, "the disk tier does not have this page"};
  const auto index = begin(identity, checksum);
  if (!index) return Error{ErrorCode::out_of_budget, "the disk tier's queue is full"};
  Operation& operation = operations_[*index];
  operation.kind = Operation::Kind::read;
  operation.slot = *slot;
  operation.target = payload;
  slots_.pin(*slot);

  const Operation* writer = writer_of(*slot);
  if (writer == nullptr) return start(*index);
  // The put's payload is stable until its completion has been polled, so the bytes are at hand: no
  // need to wait for the device. They are verified like any others.
  std::ranges::copy(writer->source, payload.begin());
  operation.result = verify_sealed_page({.identity = writer->identity,
                                         .payload_bytes = writer->source.size(),
                                         .payload_checksum = writer->checksum},
                                        payload, identity, checksum);
  push_finished(*index);
  return operation.ticket;
}

void DiskTier::erase(const PageKey& key) {
  if (const auto slot = slots_.find(key)) slots_.unshare(*slot);
}

std::size_t DiskTier::poll(std::span<TierCompletion> out) {
  std::size_t count = 0;
  while (count < out.size()) {
    const auto index = pop_finished();
    if (!index) break;
    Operation& operation = operations_[*index];
    settle(operation);
    out[count++] = {.ticket = operation.ticket, .result = std::move(operation.result)};
    free_operations_.push_back(*index);
  }
  return count;
}

void DiskTier::wait() {
  HEADRACE_CHECK(free_operations_.size() < operations_.size(), "nothing in flight never ends");
  std::unique_lock lock(mutex_);
  finished_changed_.wait(lock, [this] { return finished_count_ > 0; });
}

void DiskTier::drop_cache() {
  if (file_ == nullptr) return;
  // The system forgets only what it has written back.
  if (auto synced = file_->sync(); !synced.ok()) {
    log_message(LogLevel::warn, "kv disk: " + synced.error().message);
  }
  file_->drop_cache();
}

TierStats DiskTier::stats() const {
  TierStats stats = counters_;
  stats.pages = slots_.pages();
  stats.bytes = slots_.slots_touched() * slot_bytes_;
  stats.bytes_peak = stats.bytes;  // the file never shrinks
  return stats;
}

std::optional<OperationIndex> DiskTier::begin(const PageIdentity& identity,
                                              const Digest128& checksum) {
  if (free_operations_.empty()) return std::nullopt;
  const OperationIndex index = free_operations_.back();
  free_operations_.pop_back();
  operations_[index] = {.ticket = next_ticket_++, .identity = identity, .checksum = checksum};
  return index;
}

TierTicket DiskTier::answer(OperationIndex index, Result<void> result) {
  operations_[index].kind = Operation::Kind::answered;
  operations_[index].result = std::move(result);
  push_finished(index);
  return operations_[index].ticket;
}

TierTicket DiskTier::start(OperationIndex index) {
  const TierTicket ticket = operations_[index].ticket;
  executor_->submit([this, index] { carry_out(index); });
  return ticket;
}

Result<FileSlot> DiskTier::take_slot(const PageKey& key) {
  if (file_ == nullptr) {
    HEADRACE_TRY_ASSIGN(file_, directory_->create_page_file());
  }
  const auto slot = slots_.insert_pinned(key);
  if (slot) return *slot;
  return Error{ErrorCode::out_of_budget,
               "--kv-disk: all " + std::to_string(slots_.slots()) + " pages (" +
                   format_byte_count(slots_.slots() * slot_bytes_) + ") are in use"};
}

const Operation* DiskTier::writer_of(FileSlot slot) const {
  for (const Operation& operation : operations_) {
    if (operation.kind == Operation::Kind::write && operation.slot == slot) return &operation;
  }
  return nullptr;
}

void DiskTier::settle(Operation& operation) {
  const Operation::Kind kind = std::exchange(operation.kind, Operation::Kind::answered);
  if (kind != Operation::Kind::write && kind != Operation::Kind::read) return;
  const Result<void>& result = operation.result;
  if (!result.ok()) {
    slots_.drop(operation.slot);
    const bool damaged = kind == Operation::Kind::read && result.error().code == ErrorCode::corrupt;
    if (damaged) ++counters_.damaged;
  } else {
    ++(kind == Operation::Kind::write ? counters_.puts : counters_.gets);
  }
  slots_.unpin(operation.slot);
  if (kind == Operation::Kind::write) settle_joined(operation.slot, result);
}

void DiskTier::settle_joined(FileSlot slot, const Result<void>& result) {
  for (OperationIndex i = 0; i < operations_.size(); ++i) {
    if (operations_[i].kind == Operation::Kind::join && operations_[i].slot == slot) {
      answer(i, result);
    }
  }
}

void DiskTier::carry_out(OperationIndex index) {
  Operation& operation = operations_[index];
  const MutableBytes header =
      headers_.span().subspan(index * sealed_page_header_bytes, sealed_page_header_bytes);
  operation.result = operation.kind == Operation::Kind::write ? write_page(operation, header)
                                                              : read_page(operation, header);
  push_finished(index);
}

Result<void> DiskTier::write_page(const Operation& operation, MutableBytes header) {
  encode_sealed_page_header({.identity = operation.identity,
                             .payload_bytes = operation.source.size(),
                             .payload_checksum = operation.checksum},
                            header);
  const std::array<Bytes, 2> parts = {header, operation.source};
  return file_->write_at(offset_of(operation.slot), parts);
}

Result<void> DiskTier::read_page(const Operation& operation, MutableBytes header) {
  const std::array<MutableBytes, 2> parts = {header, operation.target};
  HEADRACE_TRY(file_->read_at(offset_of(operation.slot), parts));
  HEADRACE_TRY_ASSIGN(const SealedPageHeader stored, decode_sealed_page_header(header));
  return verify_sealed_page(stored, operation.target, operation.identity, operation.checksum);
}

void DiskTier::push_finished(OperationIndex index) {
  {
    const std::lock_guard lock(mutex_);
    finished_[(finished_first_ + finished_count_) % finished_.size()] = index;
    ++finished_count_;
  }
  finished_changed_.notify_one();
}

std::optional<OperationIndex> DiskTier::pop_finished() {
  const std::lock_guard lock(mutex_);
  if (finished_count_ == 0) return std::nullopt;
  const OperationIndex index = finished_[finished_first_];
  finished_first_ = (finished_first_ + 1) % finished_.size();
  --finished_count_;
  return index;
}

}  // namespace

std::uint64_t disk_tier_slot_bytes(const PageShape& shape) {
  return sealed_page_header_bytes + round_up(shape.bytes(), sealed_page_header_bytes);
}

std::uint64_t disk_tier_memory_bytes(const DiskTierOptions& options) {
  constexpr std::uint64_t queued_bytes =
      sealed_page_header_bytes + sizeof(Operation) + 2 * sizeof(OperationIndex);
  return SlotMap::memory_bytes(slot_count(options)) + options.queue_depth * queued_bytes;
}

Result<std::unique_ptr<Tier>> open_disk_tier(Env& env, const DiskTierOptions& options) {
  HEADRACE_CHECK(options.io_threads > 0, "a tier needs a worker");
  HEADRACE_CHECK(options.queue_depth > 0, "a tier needs a queue");
  HEADRACE_CHECK(options.shape.bytes() > 0, "a page has bytes");
  if (slot_count(options) == 0) {
    const std::string needed = format_byte_count(disk_tier_slot_bytes(options.shape));
    return Error{ErrorCode::invalid_argument,
                 "--kv-disk: a limit of " + format_byte_count(options.limit_bytes) +
                     " is less than one page; give at least " + needed};
  }
  HEADRACE_TRY_ASSIGN(auto headers, AlignedBuffer::allocate(std::size_t{options.queue_depth} *
                                                            sealed_page_header_bytes));
  HEADRACE_TRY_ASSIGN(auto directory, TierDirectory::open(env, options.directory));
  return std::unique_ptr<Tier>(
      std::make_unique<DiskTier>(env, options, std::move(directory), std::move(headers)));
}

}  // namespace headrace
