// What the threads of a LogTier do with an operation that has a buffer, step by step.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/no_memory.h"
#include "codec/group_layout.h"
#include "tier/log_tier.h"

namespace headrace {

MutableBytes LogTier::buffer_of(const Operation& operation) {
  return buffers_.span().subspan(operation.buffer * buffer_bytes_, buffer_bytes_);
}

PagePlan LogTier::plan_of(const PageIdentity& identity) const {
  return {.shape = identity.shape,
          .tokens_held = identity.tokens_held,
          .layer = identity.key.layer,
          .layers = options_.layers,
          .first_position = identity.first_position};
}

void LogTier::start(OperationIndex index) {
  {
    const std::lock_guard lock(mutex_);
    if (free_buffers_.empty()) return waiting_.push(index);
    operations_[index].buffer = free_buffers_.back();
    free_buffers_.pop_back();
  }
  start_with_buffer(index);
}

void LogTier::start_with_buffer(OperationIndex index) {
  if (operations_[index].kind == Operation::Kind::read) {
    return try_step(index, [&] { read(index); });
  }
  workers_->submit([this, index] { try_step(index, [&] { encode(index); }); });
}

void LogTier::encode(OperationIndex index) {
  Operation& operation = operations_[index];
  const MutableBytes payload = buffer_of(operation).subspan(segment_unit_bytes);
  if (operation.is_encoded) {
    std::ranges::copy(operation.source, payload.begin());
    operation.payload_bytes = operation.source.size();
  } else {
    operation.payload_bytes =
        exact_codec_.encode(plan_of(operation.identity), operation.source, payload);
  }
  const std::uint64_t padded = round_up(operation.payload_bytes, segment_unit_bytes);
  std::ranges::fill(payload.first(padded).subspan(operation.payload_bytes), std::byte{0});
  bool is_dropped = false;
  {
    const std::lock_guard lock(mutex_);
    is_dropped = operation.is_dropped;
  }
  if (is_dropped) return finish(index, {});
  if (const auto placement = store_->try_place(segment_unit_bytes + padded, operation.sequence)) {
    return write(index, *placement);
  }
  service_->submit([this, index] { try_step(index, [&] { place(index); }); });
}

void LogTier::place(OperationIndex index) {
  const Operation& operation = operations_[index];
  const std::uint64_t padded = round_up(operation.payload_bytes, segment_unit_bytes);
  auto placement = store_->place(segment_unit_bytes + padded, operation.sequence);
  if (!placement.ok()) return finish(index, std::move(placement).error());
  write(index, *placement);
}

void LogTier::write(OperationIndex index, const Placement& placement) {
  Operation& operation = operations_[index];
  operation.placement = placement;
  const MutableBytes record = buffer_of(operation).first(placement.place.bytes());
  const Codec& codec = operation.is_encoded ? codec_ : exact_codec_;
  RecordHeader header{
      .kind = RecordKind::page,
      .segment = placement.place.segment,
      .offset = placement.place.offset(),
      .sequence = operation.sequence,
      .payload_bytes = operation.payload_bytes,
      .page = {.identity = operation.identity, .codec = codec.id(), .checksum = operation.checksum},
      .digest = {},
      .checked_bytes = operation.payload_bytes,
  };
  if (const std::uint64_t group = codec.encoded_group_bytes(options_.shape); group > 0) {
    header.checked_bytes = std::min(header.payload_bytes, checked_groups(options_.shape) * group);
  }
  set_checksums(header, record.subspan(segment_unit_bytes, operation.payload_bytes));
  encode_record_header(header, placement.segment->header.identity,
                       record.first(segment_unit_bytes));
  io_->submit({.kind = IoRequest::Kind::write,
               .file = placement.segment->file.get(),
               .offset = placement.place.offset(),
               .bytes = record,
               .done = [this, index](Result<void> result) {
                 try_step(index, [&] { written(index, std::move(result)); });
               }});
}

void LogTier::written(OperationIndex index, Result<void> result) {
  Operation& operation = operations_[index];
  const Placement placement = *std::exchange(operation.placement, std::nullopt);
  if (!result.ok()) {
    store_->abandon(placement);
    const bool is_full = result.error().code == ErrorCode::out_of_budget;
    if (!is_full || std::exchange(operation.is_second_try, true)) {
      return finish(index, std::move(result));
    }
    // The device has less room than our limit. Segments with nothing alive may give some back.
    return service_->submit([this, index] {
      try_step(index, [&] {
        store_->compact(0);
        place(index);
      });
    });
  }
  {
    // One step: an erase comes before it and is seen, or after it and finds the page.
    const std::lock_guard lock(mutex_);
    if (operation.is_dropped) {
      store_->discard(operation.key, placement);
    } else if (!store_->commit(operation.key, placement)) {
      result = Error{ErrorCode::out_of_budget, "the index of the disk tier is full"};
    }
    // From now on the page is read from its place, and a later erase is not for this operation.
    operation.is_dropped = true;
  }
  finish(index, std::move(result));
}

void LogTier::read(OperationIndex index) {
  const Operation& operation = operations_[index];
  if (!options_.direct) return read_soon(index);
  const Placement& placement = *operation.placement;
  io_->submit(
      {.kind = IoRequest::Kind::read,
       .file = placement.segment->file.get(),
       .offset = placement.place.offset(),
       .bytes = buffer_of(operation).first(placement.place.bytes()),
       .done = [this, index](Result<void> result) {
         if (result.ok()) return workers_->submit([this, index] { verify(index); });
         try_step(index, [&] { finish(index, check_read(operations_[index], std::move(result))); });
       }});
}

void LogTier::read_soon(OperationIndex index) {
  bool needs_reader = false;
  {
    const std::lock_guard lock(mutex_);
    readable_.push(index);
    needs_reader = readers_ < options_.io_threads;
    if (needs_reader) ++readers_;
  }
  // Waking a thread takes as long as reading a page, so those that are awake go on.
  if (needs_reader) workers_->submit([this] { read_all(); });
}

void LogTier::read_all() {
  for (;;) {
    OperationIndex index = 0;
    {
      const std::lock_guard lock(mutex_);
      if (readable_.empty()) {
        --readers_;
        return;
      }
      index = readable_.pop();
    }
    read_here(index);
  }
}

/// Out of the system's cache, reading is copying: whoever does that has the bytes in its own cache
/// and goes on with them.
void LogTier::read_here(OperationIndex index) {
  const Operation& operation = operations_[index];
  const Placement& placement = *operation.placement;
  const MutableBytes record = buffer_of(operation).first(placement.place.bytes());
  try_step(index, [&] {
    auto result = placement.file().read_at(placement.place.offset(), std::span(&record, 1));
    finish(index, check_read(operation, std::move(result)));
  });
}

void LogTier::verify(OperationIndex index) {
  try_step(index, [&] { finish(index, check_read(operations_[index], {})); });
}

/// `result` is that of the read.
Result<void> LogTier::check_read(const Operation& operation, Result<void> result) {
  if (result.ok()) result = load(operation);
  const RecordPlace& place = operation.placement->place;
  if (result.ok()) {
    store_->note_verified(operation.key, place);
  } else {
    store_->drop_unusable(operation.key, place, result.error());
  }
  return result;
}

/// That of a page which is the one that was asked for.
Result<RecordHeader> LogTier::check_header(const Placement& found, Bytes unit,
                                           const PageIdentity& identity,
                                           const Digest128& checksum) {
  HEADRACE_TRY_ASSIGN(RecordHeader header,
                      decode_record_header(unit, found.segment->header, found.place.offset()));
  if (header.kind != RecordKind::page || header.record_bytes() != found.place.bytes()) {
    return Error{ErrorCode::corrupt, "the stored record is another one"};
  }
  HEADRACE_TRY(verify_identity(header.page.identity, identity));
  if (header.page.checksum != checksum) {
    return Error{ErrorCode::corrupt,
                 "the stored page has another checksum: " + to_hex(header.page.checksum) +
                     " instead of " + to_hex(checksum)};
  }
  return header;
}

Result<const Codec*> LogTier::known_codec(const RecordHeader& header) const {
  if (const Codec* const codec = codec_of(options_, header.page.codec)) return codec;
  return Error{ErrorCode::corrupt, "the stored page has a codec that this build does not know"};
}

Result<void> LogTier::load(const Operation& operation) {
  const Placement& placement = *operation.placement;
  const Bytes record = buffer_of(operation).first(placement.place.bytes());
  HEADRACE_TRY_ASSIGN(const RecordHeader header,
                      check_header(placement, record.first(segment_unit_bytes), operation.identity,
                                   operation.checksum));
  HEADRACE_TRY_ASSIGN(const Codec* const codec, known_codec(header));
  const Bytes payload = record.subspan(segment_unit_bytes, header.payload_bytes);
  if (codec->id() == CodecId::raw) return load_groups(header, payload, operation);
  HEADRACE_TRY(verify_payload(header, payload));
  HEADRACE_TRY(codec->decode(plan_of(operation.identity), payload, operation.target));
  if (const Digest128 actual = hash_bytes(operation.target); actual != operation.checksum) {
    return Error{ErrorCode::corrupt, "the page does not match its checksum: " + to_hex(actual) +
                                         " instead of " + to_hex(operation.checksum)};
  }
  return {};
}

/// The header vouches for the groups' checksums and names the page that they make up, so the bytes
/// are verified once, group by group, on their way to the page.
Result<void> LogTier::load_groups(const RecordHeader& header, Bytes payload,
                                  const Operation& operation) {
  const std::uint64_t group = group_bytes(options_.shape);
  const std::uint32_t tokens_held = operation.identity.tokens_held;
  if (payload.size() != grouped_bytes(options_.shape, tokens_held)) {
    return Error{ErrorCode::corrupt, "the stored page has another length"};
  }
  const auto verify = [&](std::uint32_t first, Bytes groups) {
    return verify_payload(header, groups, first * group / header.checked_bytes);
  };
  return decode_groups(options_.shape, tokens_held, payload, operation.target, verify);
}

Result<void> LogTier::load_from_writer(const Operation& writer, const PageIdentity& identity,
                                       const Digest128& checksum, MutableBytes target) const {
  HEADRACE_TRY(verify_identity(writer.identity, identity));
  if (writer.checksum != checksum) {
    return Error{ErrorCode::corrupt, "the page has another checksum"};
  }
  if (writer.is_encoded) {
    HEADRACE_TRY(codec_.decode(plan_of(identity), writer.source, target));
  } else {
    std::ranges::copy(writer.source, target.begin());
  }
  if (hash_bytes(target) != checksum) {
    return Error{ErrorCode::corrupt, "the page does not match its checksum"};
  }
  return {};
}

Result<void> LogTier::read_groups(const PageIdentity& identity, const Digest128& checksum,
                                  std::uint32_t first_group, std::uint32_t count,
                                  MutableBytes out) {
  const RecordKey key = key_of(identity.key);
  const auto found = store_->find(key);
  if (!found) return Error{ErrorCode::not_found, "the disk tier does not have this page"};
  auto result = read_groups_at(*found, identity, checksum, first_group, count, out);
  if (!result.ok() && result.error().code == ErrorCode::corrupt) {
    store_->drop_unusable(key, found->place, result.error());
    const std::lock_guard lock(mutex_);
    ++counters_.damaged;
  }
  return result;
}

Result<void> LogTier::read_groups_at(const Placement& found, const PageIdentity& identity,
                                     const Digest128& checksum, std::uint32_t first_group,
                                     std::uint32_t count, MutableBytes out) const {
  alignas(segment_unit_bytes) std::array<std::byte, segment_unit_bytes> header_bytes;
  const MutableBytes unit = header_bytes;
  HEADRACE_TRY(found.file().read_at(found.place.offset(), std::span(&unit, 1)));
  HEADRACE_TRY_ASSIGN(const RecordHeader header, check_header(found, unit, identity, checksum));
  HEADRACE_TRY_ASSIGN(const Codec* const codec, known_codec(header));
  const std::uint64_t group = codec->encoded_group_bytes(options_.shape);
  if (group == 0) {
    return Error{ErrorCode::unsupported, "pages of this codec have no groups of tokens"};
  }
  if (header.page.codec == CodecId::raw) {
    return read_checked(found, header, checked_groups(options_.shape) * group, first_group, count,
                        out);
  }
  const std::uint64_t own = group_bytes(options_.shape);
  HEADRACE_CHECK(checked_groups(options_.shape) == 1 && out.size() == count * own,
                 "groups are read and verified one by one");
  std::vector<std::byte> encoded(count * group);
  HEADRACE_TRY(read_checked(found, header, group, first_group, count, encoded));
  for (std::uint32_t i = 0; i < count; ++i) {
    HEADRACE_TRY(codec->decode_group(plan_of(identity), first_group + i,
                                     Bytes(encoded).subspan(i * group, group),
                                     out.subspan(i * own, own)));
  }
  return {};
}

/// Parts of the payload that have checksums of their own.
Result<void> LogTier::read_checked(const Placement& found, const RecordHeader& header,
                                   std::uint64_t group, std::uint32_t first_group,
                                   std::uint32_t count, MutableBytes out) const {
  const std::uint64_t start = first_group * group;
  if (count == 0 || start + count * group > round_up(header.payload_bytes, group)) {
    return Error{ErrorCode::invalid_argument, "the page does not hold these groups"};
  }
  const std::uint64_t bytes = std::min(count * group, header.payload_bytes - start);
  HEADRACE_CHECK(out.size() == bytes, "the target has the size of the groups");
  const std::uint64_t payload = found.place.offset() + segment_unit_bytes;
  if (!options_.direct) {
    HEADRACE_TRY(found.file().read_at(payload + start, std::span(&out, 1)));
  } else {
    // Whole units around them.
    const std::uint64_t from = start / segment_unit_bytes * segment_unit_bytes;
    HEADRACE_TRY_ASSIGN(
        AlignedBuffer buffer,
        AlignedBuffer::allocate(round_up(start + bytes, segment_unit_bytes) - from));
    const MutableBytes around = buffer.span();
    HEADRACE_TRY(found.file().read_at(payload + from, std::span(&around, 1)));
    std::ranges::copy(around.subspan(start - from, bytes), out.begin());
  }
  return verify_payload(header, out, first_group);
}

}  // namespace headrace
