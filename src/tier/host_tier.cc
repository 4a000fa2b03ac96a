#include "tier/host_tier.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/no_memory.h"

namespace headrace {
namespace {

using EntryIndex = std::uint32_t;
using ChunkIndex = std::uint32_t;
using OperationIndex = std::uint32_t;
constexpr std::uint32_t none = 0xFFFF'FFFF;

/// A stored page. The engine thread owns it but for what the operation that writes it fills in.
struct Entry {
  PageIdentity identity = {};
  Digest128 checksum = {};  ///< of the pool page
  // Filled in by the writing operation.
  Digest128 encoded_checksum = {};
  const Codec* codec = nullptr;
  std::uint64_t encoded_bytes = 0;
  ChunkIndex first_chunk = none;
  // Engine thread.
  EntryIndex next = none;        ///< in its bucket while listed, in the free list while free
  OperationIndex writer = none;  ///< that fills it
  std::uint32_t pins = 0;        ///< operations that use it
  bool is_listed = false;
};

struct Operation {
  enum class Kind {
    answered,  ///< decided when it was submitted
    put,
    put_encoded,
    get,
    join,  ///< a put of a page that another operation is writing: ends as that one does
  };
  Kind kind = Kind::answered;
  TierTicket ticket = 0;
  EntryIndex entry = none;  ///< pinned
  Bytes source = {};        ///< of a put
  MutableBytes target = {};
  Result<void> result = {};
};

/// The chunks. Any thread.
class ChunkArena {
 public:
  ChunkArena(AlignedBuffer chunks, AlignedBuffer links)
      : chunks_(std::move(chunks)), links_(std::move(links)) {}

  static constexpr std::uint64_t bytes_per_chunk = host_chunk_bytes + sizeof(ChunkIndex);
  static std::uint64_t chunks_for(std::uint64_t bytes) {
    return (bytes + host_chunk_bytes - 1) / host_chunk_bytes;
  }

  /// Copies `bytes` into chunks and returns the first of them; `none` when there are too few.
  ChunkIndex store(Bytes bytes) {
    const auto wanted = static_cast<ChunkIndex>(chunks_for(bytes.size()));
    const ChunkIndex first = take(wanted);
    if (first == none) return none;
    for (ChunkIndex chunk = first; !bytes.empty(); chunk = link(chunk)) {
      const std::size_t part = std::min<std::size_t>(bytes.size(), host_chunk_bytes);
      std::memcpy(data(chunk), bytes.data(), part);
      bytes = bytes.subspan(part);
    }
    return first;
  }

  void load(ChunkIndex chunk, MutableBytes out) const {
    for (; !out.empty(); chunk = link(chunk)) {
      const std::size_t part = std::min<std::size_t>(out.size(), host_chunk_bytes);
      std::memcpy(out.data(), data(chunk), part);
      out = out.subspan(part);
    }
  }

  void free(ChunkIndex first) {
    if (first == none) return;
    const std::lock_guard lock(mutex_);
    ChunkIndex last = first;
    for (--used_; link(last) != none; last = link(last)) --used_;
    link(last) = free_;
    free_ = first;
  }

  std::uint64_t bytes() const { return locked(used_) * host_chunk_bytes; }
  std::uint64_t bytes_peak() const { return locked(used_peak_) * host_chunk_bytes; }

 private:
  /// A chain of `count` chunks: those that were used before come first, so that the rest of the
  /// memory stays untouched.
  ChunkIndex take(ChunkIndex count) {
    const std::lock_guard lock(mutex_);
    if (count > chunks_.size() / host_chunk_bytes - used_) return none;
    ChunkIndex first = none;
    for (ChunkIndex i = 0; i < count; ++i) {
      const ChunkIndex chunk = free_ != none ? std::exchange(free_, link(free_)) : touched_++;
      link(chunk) = first;
      first = chunk;
    }
    used_ += count;
    used_peak_ = std::max(used_peak_, used_);
    return first;
  }

  std::uint64_t locked(const std::uint64_t& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  std::byte* data(ChunkIndex chunk) { return chunks_.data() + chunk * host_chunk_bytes; }
  const std::byte* data(ChunkIndex chunk) const {
    return chunks_.data() + chunk * host_chunk_bytes;
  }
  ChunkIndex& link(ChunkIndex chunk) { return reinterpret_cast<ChunkIndex*>(links_.data())[chunk]; }
  ChunkIndex link(ChunkIndex chunk) const {
    return reinterpret_cast<const ChunkIndex*>(links_.data())[chunk];
  }

  // A chunk and its link belong to the page that they were taken for, or to the free list.
  AlignedBuffer chunks_;
  AlignedBuffer links_;
  mutable std::mutex mutex_;  // guards the rest and the links of free chunks
  ChunkIndex free_ = none;
  ChunkIndex touched_ = 0;  ///< chunks from here on have never been used
  std::uint64_t used_ = 0;
  std::uint64_t used_peak_ = 0;
};

struct Sizes {
  std::uint32_t entries = 0;
  std::uint32_t buckets = 0;
  std::uint64_t scratch_bytes = 0;  ///< of one thread
  std::uint64_t fixed_bytes = 0;    ///< all but the chunks
  std::uint64_t chunks = 0;
};

Sizes sizes_of(const HostTierOptions& options) {
  Sizes sizes;
  const std::uint64_t few_bytes =
      std::max<std::uint64_t>(host_chunk_bytes, options.shape.bytes() / 8);
  constexpr std::uint64_t entries_max = 1U << 30;
  sizes.entries =
      options.max_pages > 0
          ? options.max_pages
          : static_cast<std::uint32_t>(std::min(options.memory_bytes / few_bytes + 1, entries_max));
  sizes.buckets = 16;
  while (sizes.buckets < sizes.entries) sizes.buckets *= 2;
  sizes.scratch_bytes = host_page_bytes_max(options.shape, *options.codec);
  sizes.fixed_bytes = sizes.entries * sizeof(Entry) + sizes.buckets * sizeof(EntryIndex) +
                      options.queue_depth * (sizeof(Operation) + 2 * sizeof(OperationIndex)) +
                      options.threads * sizes.scratch_bytes;
  if (options.memory_bytes > sizes.fixed_bytes) {
    sizes.chunks = (options.memory_bytes - sizes.fixed_bytes) / ChunkArena::bytes_per_chunk;
    sizes.chunks = std::min<std::uint64_t>(sizes.chunks, none);
  }
  return sizes;
}

PagePlan plan_of(const PageIdentity& identity, std::uint32_t layers) {
  return {.shape = identity.shape,
          .tokens_held = identity.tokens_held,
          .layer = identity.key.layer,
          .layers = layers,
          .first_position = identity.first_position};
}

class HostTier final : public Tier {
 public:
  HostTier(Env& env, const HostTierOptions& options, const Sizes& sizes, AlignedBuffer chunks,
           AlignedBuffer links, AlignedBuffer entries, AlignedBuffer scratch)
      : options_(options),
        sizes_(sizes),
        arena_(std::move(chunks), std::move(links)),
        entry_memory_(std::move(entries)),
        buckets_(sizes.buckets, none),
        operations_(options.queue_depth),
        finished_(options.queue_depth),
        scratch_(std::move(scratch)) {
    for (OperationIndex i = options.queue_depth; i > 0; --i) free_operations_.push_back(i - 1);
    for (std::uint32_t i = 0; i < options.threads; ++i) free_scratch_.push_back(i);
    executor_ = env.new_executor(options.threads);
  }

  Result<TierTicket> submit_put(const PageIdentity& identity, const Digest128& checksum,
                                Bytes payload) override {
    HEADRACE_CHECK(payload.size() == options_.shape.bytes(), "a payload is one page");
    return put(Operation::Kind::put, identity, checksum, payload);
  }
  Result<TierTicket> submit_put_encoded(const PageIdentity& identity, const Digest128& checksum,
                                        Bytes encoded) override {
    HEADRACE_CHECK(encoded.size() <= sizes_.scratch_bytes, "an encoded page has a greatest size");
    return put(Operation::Kind::put_encoded, identity, checksum, encoded);
  }
  Result<TierTicket> submit_get(const PageIdentity& identity, const Digest128& checksum,
                                MutableBytes payload) override;
  void erase(const PageKey& key) override {
    if (const EntryIndex entry = find(key); entry != none) unlist(entry);
  }
  bool has(const PageKey& key) const override { return find(key) != none; }
  std::size_t poll(std::span<TierCompletion> out) override;
  void wait() override;
  std::uint64_t memory_bytes() const override { return host_tier_memory_bytes(options_); }
  void drop_cache() override {}
  TierStats stats() const override {
    TierStats stats = counters_;
    stats.bytes = arena_.bytes();
    stats.bytes_peak = arena_.bytes_peak();
    return stats;
  }

 private:
  // Engine thread.
  Result<TierTicket> put(Operation::Kind kind, const PageIdentity& identity,
                         const Digest128& checksum, Bytes source);
  std::optional<OperationIndex> begin();
  TierTicket answer(OperationIndex index, Result<void> result);
  TierTicket start(OperationIndex index);
  void settle(OperationIndex index);

  Entry& entry(EntryIndex index) { return reinterpret_cast<Entry*>(entry_memory_.data())[index]; }
  const Entry& entry(EntryIndex index) const {
    return reinterpret_cast<const Entry*>(entry_memory_.data())[index];
  }
  std::size_t bucket(const PageKey& key) const {
    return (key.block.low ^ key.block.high ^ key.layer * 0x9E37'79B9ULL) & (sizes_.buckets - 1);
  }
  EntryIndex find(const PageKey& key) const;
  EntryIndex insert(const PageIdentity& identity, const Digest128& checksum);
  void unlist(EntryIndex index);
  void unpin(EntryIndex index);

  // Worker threads.
  void carry_out(OperationIndex index);
  Result<void> write(const Operation& operation, Entry& entry, MutableBytes scratch);
  Result<void> read(const Operation& operation, const Entry& entry, MutableBytes scratch);

  // Any thread.
  Result<void> decode(const Entry& entry, const Codec& codec, Bytes encoded,
                      MutableBytes page) const;
  void push_finished(OperationIndex index);
  std::optional<OperationIndex> pop_finished();

  const HostTierOptions options_;
  const Sizes sizes_;
  ChunkArena arena_;

  // Engine thread only, but for entries that an operation has pinned.
  AlignedBuffer entry_memory_;
  std::vector<EntryIndex> buckets_;
  EntryIndex free_entry_ = none;
  EntryIndex entries_touched_ = 0;
  std::vector<Operation> operations_;
  std::vector<OperationIndex> free_operations_;
  TierTicket next_ticket_ = 1;
  TierStats counters_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable finished_changed_;
  std::vector<OperationIndex> finished_;  // a ring, oldest first
  std::size_t finished_first_ = 0;
  std::size_t finished_count_ = 0;
  AlignedBuffer scratch_;  // one part a thread
  std::vector<std::uint32_t> free_scratch_;

  std::unique_ptr<Executor> executor_;  // last: its end waits for the jobs, which use all the rest
};

Result<TierTicket> HostTier::put(Operation::Kind kind, const PageIdentity& identity,
                                 const Digest128& checksum, Bytes source) {
  HEADRACE_CHECK(identity.shape == options_.shape, "every page of a tier has the same shape");
  const auto index = begin();
  if (!index) return Error{ErrorCode::out_of_budget, "the memory tier's queue is full"};
  Operation& operation = operations_[*index];
  if (const EntryIndex stored = find(identity.key); stored != none) {
    if (entry(stored).writer == none) return answer(*index, {});
    operation.kind = Operation::Kind::join;
    operation.entry = stored;
    ++entry(stored).pins;
    return operation.ticket;
  }
  operation.entry = insert(identity, checksum);
  if (operation.entry == none) {
    return answer(*index, Error{ErrorCode::out_of_budget, "the memory tier's index is full"});
  }
  entry(operation.entry).writer = *index;
  operation.kind = kind;
  operation.source = source;
  return start(*index);
}

Result<TierTicket> HostTier::submit_get(const PageIdentity& identity, const Digest128& checksum,
                                        MutableBytes payload) {
  HEADRACE_CHECK(identity.shape == options_.shape, "every page of a tier has the same shape");
  HEADRACE_CHECK(payload.size() == options_.shape.bytes(), "a payload is one page");
  const EntryIndex stored = find(identity.key);
  if (stored == none) {
    return Error{ErrorCode::not_found, "the memory tier does not have this page"};
  }
  const auto index = begin();
  if (!index) return Error{ErrorCode::out_of_budget, "the memory tier's queue is full"};
  Operation& operation = operations_[*index];
  operation.kind = Operation::Kind::get;
  operation.entry = stored;
  operation.target = payload;
  Entry& page = entry(stored);
  ++page.pins;
  if (page.identity != identity || page.checksum != checksum) {
    operation.result = or_no_memory(ErrorCode::io, []() -> Result<void> {
      return Error{ErrorCode::corrupt, "the memory tier has another page under this key"};
    });
    push_finished(*index);
    return operation.ticket;
  }
  if (page.writer == none) return start(*index);
  // The put's source is stable until its completion has been polled: the page comes from there.
  const Operation& writer = operations_[page.writer];
  if (writer.kind == Operation::Kind::put) {
    std::ranges::copy(writer.source, payload.begin());
    if (hash_bytes(payload) != checksum) {
      operation.result = Error{ErrorCode::corrupt, "the page does not match its checksum"};
    }
  } else {
    operation.result = or_no_memory(
        ErrorCode::io, [&] { return decode(page, *options_.codec, writer.source, payload); });
  }
  push_finished(*index);
  return operation.ticket;
}

std::size_t HostTier::poll(std::span<TierCompletion> out) {
  std::size_t count = 0;
  while (count < out.size()) {
    const auto index = pop_finished();
    if (!index) break;
    settle(*index);
    Operation& operation = operations_[*index];
    out[count++] = {.ticket = operation.ticket, .result = std::move(operation.result)};
    free_operations_.push_back(*index);
  }
  return count;
}

void HostTier::wait() {
  HEADRACE_CHECK(free_operations_.size() < operations_.size(), "nothing in flight never ends");
  std::unique_lock lock(mutex_);
  finished_changed_.wait(lock, [this] { return finished_count_ > 0; });
}

std::optional<OperationIndex> HostTier::begin() {
  if (free_operations_.empty()) return std::nullopt;
  const OperationIndex index = free_operations_.back();
  free_operations_.pop_back();
  operations_[index] = {.ticket = next_ticket_++};
  return index;
}

TierTicket HostTier::answer(OperationIndex index, Result<void> result) {
  operations_[index].kind = Operation::Kind::answered;
  operations_[index].result = std::move(result);
  push_finished(index);
  return operations_[index].ticket;
}

TierTicket HostTier::start(OperationIndex index) {
  const TierTicket ticket = operations_[index].ticket;
  executor_->submit([this, index] { carry_out(index); });
  return ticket;
}

void HostTier::settle(OperationIndex index) {
  Operation& operation = operations_[index];
  const Operation::Kind kind = std::exchange(operation.kind, Operation::Kind::answered);
  if (kind == Operation::Kind::answered) return;
  const bool is_put = kind == Operation::Kind::put || kind == Operation::Kind::put_encoded;
  if (!operation.result.ok()) {
    if (entry(operation.entry).is_listed) unlist(operation.entry);
    if (!is_put) ++counters_.damaged;
  } else {
    ++(is_put ? counters_.puts : counters_.gets);
  }
  if (is_put) {
    entry(operation.entry).writer = none;
    for (OperationIndex i = 0; i < operations_.size(); ++i) {
      if (operations_[i].kind != Operation::Kind::join || operations_[i].entry != operation.entry) {
        continue;
      }
      unpin(operations_[i].entry);
      answer(i, operation.result);
    }
  }
  unpin(operation.entry);
}

EntryIndex HostTier::find(const PageKey& key) const {
  EntryIndex index = buckets_[bucket(key)];
  while (index != none && entry(index).identity.key != key) index = entry(index).next;
  return index;
}

EntryIndex HostTier::insert(const PageIdentity& identity, const Digest128& checksum) {
  EntryIndex index = free_entry_;
  if (index != none) {
    free_entry_ = entry(index).next;
  } else if (entries_touched_ < sizes_.entries) {
    index = entries_touched_++;
  } else {
    return none;
  }
  EntryIndex& head = buckets_[bucket(identity.key)];
  entry(index) = {.identity = identity,
                  .checksum = checksum,
                  .next = std::exchange(head, index),
                  .pins = 1,
                  .is_listed = true};
  ++counters_.pages;
  return index;
}

void HostTier::unlist(EntryIndex index) {
  Entry& page = entry(index);
  EntryIndex* link = &buckets_[bucket(page.identity.key)];
  while (*link != index) link = &entry(*link).next;
  *link = page.next;
  page.is_listed = false;
  --counters_.pages;
  ++page.pins;
  unpin(index);
}

void HostTier::unpin(EntryIndex index) {
  Entry& page = entry(index);
  if (--page.pins > 0 || page.is_listed) return;
  arena_.free(page.first_chunk);
  page.first_chunk = none;
  page.next = std::exchange(free_entry_, index);
}

void HostTier::carry_out(OperationIndex index) {
  Operation& operation = operations_[index];
  std::uint32_t part = 0;
  {
    const std::lock_guard lock(mutex_);
    HEADRACE_CHECK(!free_scratch_.empty(), "as many scratch parts as threads");
    part = free_scratch_.back();
    free_scratch_.pop_back();
  }
  const MutableBytes scratch =
      scratch_.span().subspan(part * sizes_.scratch_bytes, sizes_.scratch_bytes);
  operation.result = or_no_memory(ErrorCode::io, [&] {
    return operation.kind == Operation::Kind::get
               ? read(operation, entry(operation.entry), scratch)
               : write(operation, entry(operation.entry), scratch);
  });
  {
    const std::lock_guard lock(mutex_);
    free_scratch_.push_back(part);
  }
  push_finished(index);
}

Result<void> HostTier::write(const Operation& operation, Entry& page, MutableBytes scratch) {
  Bytes encoded = operation.source;
  page.codec = options_.codec;
  if (operation.kind == Operation::Kind::put) {
    page.codec = &exact_codec(*options_.codec);
    encoded = scratch.first(
        page.codec->encode(plan_of(page.identity, options_.layers), operation.source, scratch));
  }
  page.encoded_bytes = encoded.size();
  page.encoded_checksum = hash_bytes(encoded);
  page.first_chunk = arena_.store(encoded);
  if (page.first_chunk != none) return {};
  return Error{ErrorCode::out_of_budget, "the memory tier is full"};
}

Result<void> HostTier::read(const Operation& operation, const Entry& page, MutableBytes scratch) {
  const MutableBytes encoded = scratch.first(page.encoded_bytes);
  arena_.load(page.first_chunk, encoded);
  if (hash_bytes(encoded) != page.encoded_checksum) {
    return Error{ErrorCode::corrupt, "an encoded page in memory does not match its checksum"};
  }
  return decode(page, *page.codec, encoded, operation.target);
}

Result<void> HostTier::decode(const Entry& page, const Codec& codec, Bytes encoded,
                              MutableBytes target) const {
  HEADRACE_TRY(codec.decode(plan_of(page.identity, options_.layers), encoded, target));
  if (hash_bytes(target) == page.checksum) return {};
  return Error{ErrorCode::corrupt, "a page decoded from memory does not match its checksum"};
}

void HostTier::push_finished(OperationIndex index) {
  {
    const std::lock_guard lock(mutex_);
    finished_[(finished_first_ + finished_count_) % finished_.size()] = index;
    ++finished_count_;
  }
  finished_changed_.notify_one();
}

std::optional<OperationIndex> HostTier::pop_finished() {
  const std::lock_guard lock(mutex_);
  if (finished_count_ == 0) return std::nullopt;
  const OperationIndex index = finished_[finished_first_];
  finished_first_ = (finished_first_ + 1) % finished_.size();
  --finished_count_;
  return index;
}

}  // namespace

std::uint64_t host_page_bytes_max(const PageShape& shape, const Codec& codec) {
  const std::uint64_t exact = exact_codec(codec).encoded_bytes_max(shape);
  return round_up(std::max(codec.encoded_bytes_max(shape), exact), host_chunk_bytes);
}

std::uint64_t host_tier_memory_bytes(const HostTierOptions& options) {
  const Sizes sizes = sizes_of(options);
  return sizes.fixed_bytes + sizes.chunks * ChunkArena::bytes_per_chunk;
}

Result<std::unique_ptr<Tier>> open_host_tier(Env& env, const HostTierOptions& options) {
  HEADRACE_CHECK(options.threads > 0, "a tier needs a worker");
  HEADRACE_CHECK(options.queue_depth > 0, "a tier needs a queue");
  HEADRACE_CHECK(options.shape.bytes() > 0, "a page has bytes");
  const Sizes sizes = sizes_of(options);
  const std::uint64_t page_bytes = host_page_bytes_max(options.shape, *options.codec);
  if (sizes.chunks * host_chunk_bytes < page_bytes) {
    const std::uint64_t needed =
        sizes.fixed_bytes + page_bytes / host_chunk_bytes * ChunkArena::bytes_per_chunk;
    return Error{ErrorCode::invalid_argument,
                 "a memory tier of " + format_byte_count(options.memory_bytes) +
                     " has no room for one page; give at least " + format_byte_count(needed)};
  }
  HEADRACE_TRY_ASSIGN(auto chunks, AlignedBuffer::allocate(sizes.chunks * host_chunk_bytes));
  HEADRACE_TRY_ASSIGN(auto links, AlignedBuffer::allocate(sizes.chunks * sizeof(ChunkIndex)));
  HEADRACE_TRY_ASSIGN(auto entries, AlignedBuffer::allocate(sizes.entries * sizeof(Entry)));
  HEADRACE_TRY_ASSIGN(auto scratch, AlignedBuffer::allocate(options.threads * sizes.scratch_bytes));
  return std::unique_ptr<Tier>(std::make_unique<HostTier>(env, options, sizes, std::move(chunks),
                                                          std::move(links), std::move(entries),
                                                          std::move(scratch)));
}

}  // namespace headrace
