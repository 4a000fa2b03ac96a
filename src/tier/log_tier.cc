#include "tier/log_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/no_memory.h"

namespace headrace {
namespace {

/// Of an outcome that several share. The text of an error needs memory.
Result<void> copy_of(const Result<void>& outcome) {
  return or_no_memory(ErrorCode::io, [&] { return Result<void>(outcome); });
}

}  // namespace

LogTier::LogTier(Env& env, const DiskTierOptions& options, std::unique_ptr<TierDirectory> directory,
                 std::unique_ptr<SegmentStore> store, AlignedBuffer buffers)
    : options_(options),
      codec_(codec_of(options)),
      exact_codec_(exact_codec(codec_)),
      memory_bytes_(disk_tier_memory_bytes(options)),
      buffer_bytes_(buffer_bytes(options)),
      pages_max_(store_options(options).pages_max),
      directory_(std::move(directory)),
      store_(std::move(store)),
      buffers_(std::move(buffers)),
      operations_(options.queue_depth),
      waiting_(options.queue_depth),
      readable_(options.queue_depth),
      finished_(options.queue_depth),
      service_(env.new_executor(1)),
      workers_(env.new_executor(options.io_threads)),
      io_(env.new_io_queue(options.queue_depth)) {
  free_operations_.reserve(options.queue_depth);
  syncs_.reserve(options.queue_depth);
  for (OperationIndex i = options.queue_depth; i > 0; --i) free_operations_.push_back(i - 1);
  for (std::uint32_t i = buffer_count(options); i > 0; --i) free_buffers_.push_back(i - 1);
}

LogTier::~LogTier() {
  const auto is_busy = [this] {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(operations_, [](const auto& each) { return !each.is_finished; });
  };
  while (is_busy()) {
    io_->wait_idle();
    workers_->wait_idle();
    service_->wait_idle();
  }
  io_.reset();
  workers_.reset();
  service_.reset();
}

Result<TierTicket> LogTier::submit_put(const PageIdentity& identity, const Digest128& checksum,
                                       Bytes payload) {
  HEADRACE_CHECK(payload.size() == options_.shape.bytes(), "a payload is one page");
  return put(identity, checksum, payload, false);
}

Result<TierTicket> LogTier::submit_put_encoded(const PageIdentity& identity,
                                               const Digest128& checksum, Bytes encoded) {
  HEADRACE_CHECK(!encoded.empty() && encoded.size() <= codec_.encoded_bytes_max(options_.shape),
                 "an encoded page has the length of one");
  return put(identity, checksum, encoded, true);
}

Result<TierTicket> LogTier::put(const PageIdentity& identity, const Digest128& checksum,
                                Bytes source, bool is_encoded) {
  HEADRACE_CHECK(identity.shape == options_.shape, "every page of a tier has the same shape");
  std::unique_lock lock(mutex_);
  const auto index = begin({.kind = Operation::Kind::write,
                            .is_finished = false,
                            .identity = identity,
                            .checksum = checksum,
                            .source = source,
                            .is_encoded = is_encoded,
                            .key = key_of(identity.key)});
  if (!index) return Error{ErrorCode::out_of_budget, "the disk tier's queue is full"};
  Operation& operation = operations_[*index];
  const TierTicket ticket = operation.ticket;
  operation.kind = Operation::Kind::answered;  // so that it is not its own writer
  const Operation* writer = writer_of(operation.key);
  if (writer != nullptr) {
    operation.kind = Operation::Kind::join;
    operation.index = static_cast<OperationIndex>(writer - operations_.data());
    return ticket;
  }
  // A page that an earlier process left may be torn. Until it has been read it is no reason not to
  // write: a sync that comes later promises that it is there.
  const bool is_stored = store_->has_verified(operation.key);
  const bool is_full =
      !store_->find(operation.key) &&
      store_->count(RecordKind::page) + writes_in_flight(RecordKind::page) >= pages_max_;
  if (is_stored || is_full) {
    if (!is_stored) {
      operation.result = or_no_memory(ErrorCode::io, [&]() -> Result<void> {
        return Error{ErrorCode::out_of_budget,
                     "--kv-disk: all " + std::to_string(pages_max_) + " pages are in use"};
      });
    }
    push_finished(*index);
    return ticket;
  }
  operation.kind = Operation::Kind::write;
  operation.sequence = store_->next_sequence();
  lock.unlock();
  start(*index);
  return ticket;
}

Result<TierTicket> LogTier::submit_get(const PageIdentity& identity, const Digest128& checksum,
                                       MutableBytes payload) {
  HEADRACE_CHECK(identity.shape == options_.shape, "every page of a tier has the same shape");
  HEADRACE_CHECK(payload.size() == options_.shape.bytes(), "a payload is one page");
  const RecordKey key = key_of(identity.key);
  std::unique_lock lock(mutex_);
  Operation* writer = writer_of(key);
  auto placement = store_->find(key);
  if (writer == nullptr && !placement) {
    return Error{ErrorCode::not_found, "the disk tier does not have this page"};
  }
  const auto index = begin({.kind = Operation::Kind::read,
                            .is_finished = false,
                            .identity = identity,
                            .checksum = checksum,
                            .target = payload,
                            .placement = std::move(placement),
                            .key = key});
  if (!index) return Error{ErrorCode::out_of_budget, "the disk tier's queue is full"};
  Operation& operation = operations_[*index];
  const TierTicket ticket = operation.ticket;
  if (writer != nullptr) {
    // The put's payload is stable until its completion has been polled, so the bytes are at hand:
    // no need to wait for the device. They are verified like any others.
    operation.kind = Operation::Kind::answered;
    operation.result = or_no_memory(
        ErrorCode::io, [&] { return load_from_writer(*writer, identity, checksum, payload); });
    ++(operation.result.ok() ? counters_.gets : counters_.damaged);
    if (!operation.result.ok()) writer->is_dropped = true;
    push_finished(*index);
    return ticket;
  }
  lock.unlock();
  start(*index);
  return ticket;
}

void LogTier::erase(const PageKey& key) { erase_key(key_of(key)); }

void LogTier::erase_record(RecordKind kind, const Digest128& key) {
  erase_key({.kind = kind, .digest = key});
}

void LogTier::erase_key(const RecordKey& key) {
  bool is_time_to_flush = false;
  {
    const std::lock_guard lock(mutex_);
    for (Operation& operation : operations_) {
      const bool writes =
          operation.kind == Operation::Kind::write || operation.kind == Operation::Kind::record;
      if (writes && !operation.is_finished && operation.key == key) operation.is_dropped = true;
    }
    store_->erase(key);
    is_time_to_flush = store_->wants_flush() && !std::exchange(is_flushing_, true);
  }
  if (!is_time_to_flush) return;
  service_->submit([this] {
    // A failure is that of the next sync, which tries again.
    static_cast<void>(or_no_memory(ErrorCode::io, [this] { return store_->flush_erased(); }));
    const std::lock_guard lock(mutex_);
    is_flushing_ = false;
  });
}

bool LogTier::has(const PageKey& key) const {
  const std::lock_guard lock(mutex_);
  return writer_of(key_of(key)) != nullptr || store_->find(key_of(key)).has_value();
}

std::size_t LogTier::poll(std::span<TierCompletion> out) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  while (count < out.size() && !finished_.empty()) {
    const OperationIndex index = finished_.pop();
    Operation& operation = operations_[index];
    out[count++] = {.ticket = operation.ticket, .result = std::move(operation.result)};
    operation = {};
    free_operations_.push_back(index);
  }
  return count;
}

void LogTier::wait() {
  std::unique_lock lock(mutex_);
  HEADRACE_CHECK(free_operations_.size() < operations_.size(), "nothing in flight never ends");
  while (finished_.empty()) {
    if (readable_.empty()) {
      finished_changed_.wait(lock);
      continue;
    }
    const OperationIndex index = readable_.pop();
    lock.unlock();
    read_here(index);
    lock.lock();
  }
}

TierStats LogTier::stats() const {
  const SegmentStoreStats store = store_->stats();
  const std::lock_guard lock(mutex_);
  TierStats stats = counters_;
  stats.pages = store.records[static_cast<std::size_t>(RecordKind::page)];
  stats.bytes = store.bytes;
  stats.bytes_peak = store.bytes_peak;
  stats.damaged += store.damaged;
  stats.bytes_live = store.live_bytes;
  stats.bytes_written = store.written_bytes;
  stats.bytes_compacted = store.compacted_bytes;
  stats.syncs = store.syncs;
  stats.segments = store.segments;
  stats.foreign_bytes = store.foreign_bytes;
  stats.pages_recovered = store.recovered_pages;
  return stats;
}

Result<TierTicket> LogTier::submit_put_record(RecordKind kind, const Digest128& key, Bytes body) {
  HEADRACE_CHECK(kind == RecordKind::block || kind == RecordKind::session,
                 "pages and lists of what is erased have ways of their own");
  if (body.empty() || body.size() > record_body_bytes_max) {
    return Error{ErrorCode::invalid_argument,
                 "a record of " + format_byte_count(body.size()) + " cannot be stored; 1 B to " +
                     format_byte_count(record_body_bytes_max) + " can"};
  }
  std::unique_lock lock(mutex_);
  const bool is_too_much = body_bytes_ + body.size() > record_body_bytes_max;
  const auto index = is_too_much
                         ? std::nullopt
                         : begin({.kind = Operation::Kind::answered,
                                  .is_finished = false,
                                  .key = {.kind = kind, .digest = key},
                                  .body = std::vector<std::byte>(body.begin(), body.end())});
  if (!index) return Error{ErrorCode::out_of_budget, "the disk tier's queue is full"};
  Operation& operation = operations_[*index];
  const TierTicket ticket = operation.ticket;
  const std::uint64_t records = store_->count(RecordKind::block) +
                                store_->count(RecordKind::session) +
                                writes_in_flight(RecordKind::block);
  if (records >= options_.max_records && !store_->find(operation.key)) {
    operation.result = or_no_memory(ErrorCode::io, [&]() -> Result<void> {
      return Error{
          ErrorCode::out_of_budget,
          "--kv-disk: all " + std::to_string(options_.max_records) + " records are in use"};
    });
    push_finished(*index);
    return ticket;
  }
  operation.kind = Operation::Kind::record;
  operation.sequence = store_->next_sequence();
  body_bytes_ += body.size();
  lock.unlock();
  service_->submit([this, at = *index] { try_step(at, [&] { write_record(at); }); });
  return ticket;
}

void LogTier::write_record(OperationIndex index) {
  Operation& operation = operations_[index];
  const auto is_dropped = [&] {
    const std::lock_guard lock(mutex_);
    return operation.is_dropped;
  };
  if (is_dropped()) return finish(index, {});
  auto result = store_->write_body(operation.key.kind, operation.key.digest, operation.sequence,
                                   operation.body);
  if (result.ok() && is_dropped()) store_->erase_until(operation.key, operation.sequence);
  finish(index, std::move(result));
}

Result<std::vector<std::byte>> LogTier::read_record(RecordKind kind, const Digest128& key) {
  const RecordKey name{.kind = kind, .digest = key};
  {
    const std::lock_guard lock(mutex_);
    const Operation* newest = nullptr;
    for (const Operation& operation : operations_) {
      if (operation.kind != Operation::Kind::record || operation.is_finished ||
          operation.is_dropped || operation.key != name) {
        continue;
      }
      if (newest == nullptr || newest->ticket < operation.ticket) newest = &operation;
    }
    if (newest != nullptr) return newest->body;
  }
  return store_->read_body(kind, key);
}

Result<TierTicket> LogTier::submit_sync() {
  TierTicket ticket = 0;
  bool is_ready = false;
  {
    const std::lock_guard lock(mutex_);
    const auto index = begin({.kind = Operation::Kind::sync, .is_finished = false});
    if (!index) return Error{ErrorCode::out_of_budget, "the disk tier's queue is full"};
    ticket = operations_[*index].ticket;
    is_ready = is_sync_ready(operations_[*index]);
  }
  if (is_ready) service_->submit([this] { run_syncs(); });
  return ticket;
}

bool LogTier::is_sync_ready(const Operation& sync) const {
  return std::ranges::none_of(operations_, [&](const Operation& other) {
    const bool writes =
        other.kind == Operation::Kind::write || other.kind == Operation::Kind::record;
    return writes && !other.is_finished && other.ticket < sync.ticket;
  });
}

void LogTier::run_syncs() {
  syncs_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (OperationIndex i = 0; i < operations_.size(); ++i) {
      Operation& operation = operations_[i];
      const bool waits = operation.kind == Operation::Kind::sync && !operation.is_finished &&
                         !operation.is_started;
      if (!waits || !is_sync_ready(operation)) continue;
      operation.is_started = true;
      syncs_.push_back(i);
    }
  }
  if (syncs_.empty()) return;  // another one's sync was theirs too
  const auto result = or_no_memory(ErrorCode::io, [this] { return store_->sync(); });
  for (const OperationIndex index : syncs_) {
    // A put that ended badly has said so here already.
    const bool has_failed = !operations_[index].result.ok();
    finish(index, copy_of(has_failed ? operations_[index].result : result));
  }
}

void LogTier::compact(std::uint64_t budget_bytes) {
  if (!store_->wants_compaction()) return;  // mostly so, and asked after every step
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_compacting_, true)) return;
  }
  service_->submit([this, budget_bytes] {
    static_cast<void>(has_memory_for([&] { store_->compact(budget_bytes); }));
    const std::lock_guard lock(mutex_);
    is_compacting_ = false;
  });
}

Result<void> LogTier::set_limit_bytes(std::uint64_t bytes) {
  std::mutex mutex;
  std::condition_variable finished;
  std::optional<Result<void>> outcome;
  service_->submit([&] {
    Result<void> result = or_no_memory(ErrorCode::io, [&] { return store_->set_limit(bytes); });
    const std::lock_guard lock(mutex);
    outcome = std::move(result);
    finished.notify_one();
  });
  std::unique_lock lock(mutex);
  finished.wait(lock, [&] { return outcome.has_value(); });
  return *std::move(outcome);
}

std::optional<LogTier::OperationIndex> LogTier::begin(Operation operation) {
  if (free_operations_.empty()) return std::nullopt;
  const OperationIndex index = free_operations_.back();
  free_operations_.pop_back();
  operations_[index] = std::move(operation);
  operations_[index].ticket = next_ticket_++;
  return index;
}

void LogTier::push_finished(OperationIndex index) {
  operations_[index].is_finished = true;
  operations_[index].placement.reset();
  finished_.push(index);
  finished_changed_.notify_one();
}

const LogTier::Operation* LogTier::writer_of(const RecordKey& key) const {
  for (const Operation& operation : operations_) {
    if (operation.kind == Operation::Kind::write && !operation.is_finished &&
        !operation.is_dropped && operation.key == key) {
      return &operation;
    }
  }
  return nullptr;
}

LogTier::Operation* LogTier::writer_of(const RecordKey& key) {
  return const_cast<Operation*>(std::as_const(*this).writer_of(key));
}

std::uint64_t LogTier::writes_in_flight(RecordKind kind) const {
  const bool pages = kind == RecordKind::page;
  return static_cast<std::uint64_t>(
      std::ranges::count_if(operations_, [&](const Operation& operation) {
        const auto wanted = pages ? Operation::Kind::write : Operation::Kind::record;
        return operation.kind == wanted && !operation.is_finished;
      }));
}

void LogTier::finish(OperationIndex index, Result<void> result) {
  std::optional<OperationIndex> next;
  bool is_sync_due = false;
  {
    const std::lock_guard lock(mutex_);
    Operation& operation = operations_[index];
    const auto kind = operation.kind;
    const bool has_buffer = kind == Operation::Kind::write || kind == Operation::Kind::read;
    const bool has_written = kind == Operation::Kind::write || kind == Operation::Kind::record;
    if (kind == Operation::Kind::write && result.ok()) ++counters_.puts;
    if (kind == Operation::Kind::read && result.ok()) ++counters_.gets;
    if (kind == Operation::Kind::read && !result.ok() &&
        result.error().code == ErrorCode::corrupt) {
      ++counters_.damaged;
    }
    body_bytes_ -= kind == Operation::Kind::record ? operation.body.size() : 0;
    if (has_buffer) {
      free_buffers_.push_back(operation.buffer);
      if (!waiting_.empty()) {
        next = waiting_.pop();
        operations_[*next].buffer = free_buffers_.back();
        free_buffers_.pop_back();
      }
    }
    operation.result = std::move(result);
    push_finished(index);
    for (OperationIndex i = 0; i < operations_.size(); ++i) {
      Operation& other = operations_[i];
      if (other.is_finished) continue;
      if (other.kind == Operation::Kind::join && other.index == index) {
        other.result = copy_of(operation.result);
        push_finished(i);
      } else if (other.kind == Operation::Kind::sync && has_written) {
        const bool concerned = operation.ticket < other.ticket && !other.is_started;
        if (concerned && !operation.result.ok()) other.result = copy_of(operation.result);
        is_sync_due = is_sync_due || (concerned && is_sync_ready(other));
      }
    }
  }
  if (next) start_with_buffer(*next);
  if (is_sync_due) service_->submit([this] { run_syncs(); });
}

std::uint64_t LogTier::operation_bytes() { return sizeof(Operation) + 5 * sizeof(OperationIndex); }

const Codec& LogTier::codec_of(const DiskTierOptions& options) {
  return options.codec != nullptr ? *options.codec : raw_codec();
}

const Codec* LogTier::codec_of(const DiskTierOptions& options, CodecId id) {
  const Codec& own = codec_of(options);
  return own.id() == id ? &own : find_codec(id);
}

std::uint64_t LogTier::buffer_bytes(const DiskTierOptions& options) {
  const std::uint64_t payload_bytes =
      std::max({codec_of(options).encoded_bytes_max(options.shape),
                exact_codec(codec_of(options)).encoded_bytes_max(options.shape),
                raw_codec().encoded_bytes_max(options.shape)});
  return segment_unit_bytes + round_up(payload_bytes, segment_unit_bytes);
}

std::uint32_t LogTier::buffer_count(const DiskTierOptions& options) {
  return std::min(options.queue_depth, options.direct ? 8U : 4U);
}

SegmentStoreOptions LogTier::store_options(const DiskTierOptions& options) {
  constexpr std::uint64_t segment_bytes_max = std::uint64_t{64} << 20;
  const std::uint64_t page_bytes = buffer_bytes(options);
  const std::uint64_t least_bytes = segment_unit_bytes + 2 * page_bytes;
  SegmentStoreOptions store;
  store.limit_bytes = options.limit_bytes;
  store.segment_bytes = options.limit_bytes == 0
                            ? segment_bytes_max
                            : std::min(options.limit_bytes / 16, segment_bytes_max);
  store.segment_bytes = std::max(store.segment_bytes, least_bytes);
  store.record_bytes_max = std::max(
      {page_bytes, 2 * segment_unit_bytes,
       options.max_records > 0 ? segment_unit_bytes + record_body_bytes_max : std::uint64_t{0}});
  store.pages_max = options.max_pages > 0 ? options.max_pages : disk_tier_pages_default;
  if (options.limit_bytes > 0 && options.max_pages == 0) {
    // Of the smallest pages with one token there could be more, but not for long.
    store.pages_max = std::min(store.pages_max, options.limit_bytes / page_bytes + 1);
  }
  store.records_max = options.max_records;
  const std::uint64_t lists = options.keep ? 64 + store.pages_max / erased_entries_max : 0;
  store.index_capacity = static_cast<std::uint32_t>(store.pages_max + store.records_max + lists);
  store.keep = options.keep;
  store.direct = options.direct;
  // Another codec than ours is no matter, as long as a buffer takes what it made.
  store.is_ours = [options, most = page_bytes](const SealedPage& page) {
    const Codec* const codec = codec_of(options, page.codec);
    return page.identity.shape == options.shape && codec != nullptr &&
           segment_unit_bytes + codec->encoded_bytes_max(options.shape) <= most;
  };
  return store;
}

}  // namespace headrace
