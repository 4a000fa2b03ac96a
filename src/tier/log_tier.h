// LogTier: the DiskTier over a SegmentStore. It owns submissions: from submit_*() until their
// completion has been polled they are operations, which move from thread to thread:
//
//   put     engine -> worker: encode, place -> (service: make room) -> IO: write -> committed
//   get     engine -> worker, or the engine while it waits: read, verify, decode
//   get past the system's cache
//           engine -> IO: read -> worker: verify, decode
//   record  engine -> service: write
//   sync    engine, once the writes before it have ended -> service: all that wait together
//
// A put or get has a buffer from its start to its end; without a free one it waits in line.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/no_memory.h"
#include "base/ring.h"
#include "tier/disk_tier.h"
#include "tier/segment_store.h"

namespace headrace {

class LogTier final : public DiskTier {
 public:
  LogTier(Env& env, const DiskTierOptions& options, std::unique_ptr<TierDirectory> directory,
          std::unique_ptr<SegmentStore> store, AlignedBuffer buffers);
  ~LogTier() override;

  Result<TierTicket> submit_put(const PageIdentity& identity, const Digest128& checksum,
                                Bytes payload) override;
  Result<TierTicket> submit_put_encoded(const PageIdentity& identity, const Digest128& checksum,
                                        Bytes encoded) override;
  Result<TierTicket> submit_get(const PageIdentity& identity, const Digest128& checksum,
                                MutableBytes payload) override;
  void erase(const PageKey& key) override;
  bool has(const PageKey& key) const override;
  bool has_verified(const PageKey& key) const override { return store_->has_verified(key_of(key)); }
  std::size_t poll(std::span<TierCompletion> out) override;
  void wait() override;
  std::uint64_t memory_bytes() const override { return memory_bytes_; }
  void drop_cache() override { store_->drop_cache(); }
  TierStats stats() const override;
  Result<TierTicket> submit_put_record(RecordKind kind, const Digest128& key, Bytes body) override;
  void erase_record(RecordKind kind, const Digest128& key) override;
  Result<std::vector<std::byte>> read_record(RecordKind kind, const Digest128& key) override;
  std::vector<Digest128> record_keys(RecordKind kind) const override { return store_->keys(kind); }
  bool is_complete() const override { return store_->is_complete(); }
  Result<TierTicket> submit_sync() override;
  void compact(std::uint64_t budget_bytes) override;
  Result<void> set_limit_bytes(std::uint64_t bytes) override;
  Result<void> read_groups(const PageIdentity& identity, const Digest128& checksum,
                           std::uint32_t first_group, std::uint32_t count,
                           MutableBytes out) override;

  /// Of one operation.
  static std::uint64_t operation_bytes();
  static const Codec& codec_of(const DiskTierOptions& options);
  /// nullptr: neither this tier nor this build knows it.
  static const Codec* codec_of(const DiskTierOptions& options, CodecId id);
  static std::uint64_t buffer_bytes(const DiskTierOptions& options);
  static std::uint32_t buffer_count(const DiskTierOptions& options);
  static SegmentStoreOptions store_options(const DiskTierOptions& options);

 private:
  struct Operation {
    enum class Kind {
      answered,  ///< decided when it was submitted
      write,
      read,
      join,  ///< a put of a page that another operation is writing: ends as that one does
      record,
      sync,
    };
    Kind kind = Kind::answered;
    bool is_finished = true;  ///< its result stands
    TierTicket ticket = 0;
    PageIdentity identity = {};  ///< of write and read
    Digest128 checksum = {};
    Bytes source = {};         ///< of write
    MutableBytes target = {};  ///< of read
    bool is_encoded = false;   ///< the source of a write
    bool is_dropped = false;   ///< what is written shall not stay
    bool is_second_try = false;
    bool is_started = false;          ///< of sync
    std::uint32_t index = 0;          ///< of the operation that a join follows
    std::uint32_t buffer = 0;         ///< of write and read
    std::uint64_t payload_bytes = 0;  ///< of write, once encoded
    std::uint64_t sequence = 0;       ///< of write and record
    std::optional<Placement> placement = {};
    RecordKey key = {};                ///< of write, read and record
    std::vector<std::byte> body = {};  ///< of record
    Result<void> result = {};
  };
  using OperationIndex = std::uint32_t;

  // With mutex_ held.
  std::optional<OperationIndex> begin(Operation operation);
  void push_finished(OperationIndex index);
  const Operation* writer_of(const RecordKey& key) const;
  Operation* writer_of(const RecordKey& key);
  bool is_sync_ready(const Operation& sync) const;
  std::uint64_t writes_in_flight(RecordKind kind) const;

  // Any thread, without mutex_.
  Result<TierTicket> put(const PageIdentity& identity, const Digest128& checksum, Bytes source,
                         bool is_encoded);
  void start(OperationIndex index);
  void start_with_buffer(OperationIndex index);
  void finish(OperationIndex index, Result<void> result);
  void erase_key(const RecordKey& key);
  MutableBytes buffer_of(const Operation& operation);

  /// Carries out a step. An operation that runs out of memory in it ends with an error.
  template <typename Step>
  void try_step(OperationIndex index, Step&& step);

  // The steps of a put and of a get.
  void encode(OperationIndex index);
  void place(OperationIndex index);
  void write(OperationIndex index, const Placement& placement);
  void written(OperationIndex index, Result<void> result);
  void read(OperationIndex index);
  void read_soon(OperationIndex index);
  void read_all();
  void read_here(OperationIndex index);
  void verify(OperationIndex index);
  Result<void> check_read(const Operation& operation, Result<void> result);
  static Result<RecordHeader> check_header(const Placement& found, Bytes unit,
                                           const PageIdentity& identity, const Digest128& checksum);
  Result<void> load(const Operation& operation);
  Result<void> load_groups(const RecordHeader& header, Bytes payload, const Operation& operation);
  Result<const Codec*> known_codec(const RecordHeader& header) const;
  Result<void> read_checked(const Placement& found, const RecordHeader& header, std::uint64_t group,
                            std::uint32_t first_group, std::uint32_t count, MutableBytes out) const;
  Result<void> read_groups_at(const Placement& found, const PageIdentity& identity,
                              const Digest128& checksum, std::uint32_t first_group,
                              std::uint32_t count, MutableBytes out) const;
  Result<void> load_from_writer(const Operation& writer, const PageIdentity& identity,
                                const Digest128& checksum, MutableBytes target) const;
  PagePlan plan_of(const PageIdentity& identity) const;

  void write_record(OperationIndex index);
  void run_syncs();

  const DiskTierOptions options_;
  const Codec& codec_;
  const Codec& exact_codec_;  // for pool pages: codec_ if that changes nothing
  const std::uint64_t memory_bytes_;
  const std::uint64_t buffer_bytes_;
  const std::uint64_t pages_max_;
  const std::unique_ptr<TierDirectory> directory_;
  const std::unique_ptr<SegmentStore> store_;
  AlignedBuffer buffers_;  ///< each belongs to the operation that has it

  mutable std::mutex mutex_;
  std::condition_variable finished_changed_;
  // Guarded by mutex_; of an operation only what says how it goes on, the rest belongs to the
  // thread that has it.
  std::vector<Operation> operations_;
  std::vector<OperationIndex> free_operations_;
  std::vector<std::uint32_t> free_buffers_;
  Ring<OperationIndex> waiting_;   ///< for a buffer
  Ring<OperationIndex> readable_;  ///< out of the system's cache, by whoever is free
  std::uint32_t readers_ = 0;      ///< workers that do so, or will
  Ring<OperationIndex> finished_;
  std::uint64_t body_bytes_ = 0;  ///< of records in flight
  TierTicket next_ticket_ = 1;
  TierStats counters_;  ///< puts, gets, damaged
  bool is_compacting_ = false;
  bool is_flushing_ = false;

  std::vector<OperationIndex> syncs_;  ///< service only

  // Ended in this order: what the first starts on the next is carried out.
  std::unique_ptr<Executor> service_;
  std::unique_ptr<Executor> workers_;
  std::unique_ptr<IoQueue> io_;
};

template <typename Step>
void LogTier::try_step(OperationIndex index, Step&& step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    // What a step hands over it hands over at its end, and then it cannot fail any more.
    const Operation& operation = operations_[index];
    const bool has_place = operation.kind == Operation::Kind::write && operation.placement;
    if (has_place) store_->abandon(*operation.placement);
    finish(index, no_memory(ErrorCode::io));
  }
}

}  // namespace headrace
