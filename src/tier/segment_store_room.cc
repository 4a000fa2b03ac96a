// How a SegmentStore finds room: new segments within the limit, and old ones that go for it.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_memory.h"
#include "tier/segment_store.h"

namespace headrace {
namespace {

void warn(const Error& error) { log_message(LogLevel::warn, "kv disk: " + error.message); }

}  // namespace

Result<Placement> SegmentStore::place(std::uint64_t bytes, std::uint64_t sequence) {
  std::uint64_t reserve = 0;
  {
    const std::lock_guard lock(mutex_);
    reserve = put_reserve();
  }
  return place_with_reserve(bytes, sequence, reserve);
}

// The reserve is what compaction needs to copy the records of one segment before it can remove it.
// So a caller that gives none is not helped by compaction.
Result<Placement> SegmentStore::place_with_reserve(std::uint64_t bytes, std::uint64_t sequence,
                                                   std::uint64_t reserve) {
  for (;;) {
    std::uint64_t needed = bytes;
    bool needs_room = false;
    {
      const std::lock_guard lock(mutex_);
      if (auto placement = take(bytes, sequence, reserve)) return *std::move(placement);
      const bool is_full =
          active_ == nullptr || (active_->used_bytes > segment_unit_bytes &&
                                 active_->used_bytes + bytes > options_.segment_bytes);
      if (is_full) needed += segment_unit_bytes;
      needs_room = !fits(needed, reserve);
    }
    if (!needs_room) {
      auto made = new_segment();
      if (made.ok()) continue;
      // The device has less room than our limit. Segments with nothing alive may give some back.
      if (made.error().code != ErrorCode::out_of_budget || reserve == 0) {
        return std::move(made).error();
      }
      SegmentRef dead;
      {
        const std::lock_guard lock(mutex_);
        dead = find_dead();
      }
      if (dead == nullptr) return std::move(made).error();
      HEADRACE_TRY(remove_segment(dead));
    } else if (reserve > 0) {
      HEADRACE_TRY(make_room(needed, reserve));
    } else {
      return Error{ErrorCode::out_of_budget, "--kv-disk: there is no room to move what is stored"};
    }
  }
}

// What moves while the directory shrinks has the room of the old limit.
Result<void> SegmentStore::set_limit(std::uint64_t limit_bytes) {
  for (;;) {
    SegmentRef dead, victim;
    {
      const std::lock_guard lock(mutex_);
      if (limit_bytes == 0 || directory_bytes() <= limit_bytes) {
        limit_bytes_ = limit_bytes;
        return {};
      }
      dead = find_dead();
      if (dead == nullptr) victim = pick_victim(true);
      if (victim != nullptr && victim->dead_bytes() == 0) victim = nullptr;
    }
    if (dead != nullptr) {
      HEADRACE_TRY(remove_segment(dead));
    } else if (victim != nullptr) {
      HEADRACE_TRY(empty_and_remove(victim));
    } else if (!give_up_foreign()) {
      return Error{ErrorCode::out_of_budget,
                   "--kv-disk: what is stored does not fit into " + format_byte_count(limit_bytes)};
    }
  }
}

Result<void> SegmentStore::make_room(std::uint64_t bytes, std::uint64_t reserve) {
  for (;;) {
    SegmentRef dead, victim;
    std::uint64_t live_bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      if (fits(bytes, reserve)) return {};
      dead = find_dead();
      if (dead == nullptr) victim = pick_victim(true);
      for (const auto& [number, segment] : segments_) live_bytes += segment->live_bytes;
    }
    if (dead != nullptr) {
      HEADRACE_TRY(remove_segment(dead));
    } else if (victim != nullptr) {
      HEADRACE_TRY(empty_and_remove(victim));
    } else if (!give_up_foreign()) {
      return Error{ErrorCode::out_of_budget, "--kv-disk: " + format_byte_count(live_bytes) +
                                                 " of " + format_byte_count(limit_bytes_) +
                                                 " are in use, and the rest is needed to move it"};
    }
  }
}

SegmentStore::SegmentRef SegmentStore::find_dead() const {
  for (const auto& [number, segment] : segments_) {
    const bool is_dead = segment->live_bytes == 0 && segment->in_flight == 0;
    if (is_dead && segment->is_sealed && !segment->is_stuck) return segment;
  }
  return nullptr;
}

// The one with the least alive for its size, so that the fewest bytes are copied for the room.
SegmentStore::SegmentRef SegmentStore::pick_victim(bool must_have_room) const {
  SegmentRef best;
  double best_live = 2;
  for (const auto& [number, segment] : segments_) {
    if (segment->is_stuck || segment->in_flight > 0 || segment->foreign_bytes > 0) continue;
    if (segment->dead_bytes() == 0) continue;
    if (must_have_room && !fits(segment->live_bytes + segment_unit_bytes, 0)) continue;
    const double live =
        static_cast<double>(segment->live_bytes) / static_cast<double>(segment->used_bytes);
    if (live < best_live) best = segment;
    best_live = std::min(best_live, live);
  }
  return best;
}

// Records that nobody here can use: the oldest segment with some goes first.
bool SegmentStore::give_up_foreign() {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, segment] : segments_) {
    if (segment->foreign_bytes == 0) continue;
    segment->live_bytes -= std::exchange(segment->foreign_bytes, 0);
    return true;
  }
  return false;
}

Result<void> SegmentStore::new_segment() {
  SegmentHeader header{.is_scratch = !options_.keep, .identity = env_.random()};
  {
    const std::lock_guard lock(mutex_);
    seal_active();
    header.number = next_segment_++;
    header.next_sequence = next_sequence_;
  }
  const std::string path = directory_.file_path(segment_name(header.number));
  HEADRACE_TRY_ASSIGN(std::unique_ptr<File> file, env_.open_file(path, OpenMode::create_new));
  const MutableBytes bytes = buffer_.span().first(segment_unit_bytes);
  encode_segment_header(header, bytes);
  const Bytes part = bytes;
  auto made = or_no_memory(ErrorCode::io, [&]() -> Result<void> {
    if (options_.direct) {
      auto direct = file->use_direct_io();
      if (!direct.ok() && !std::exchange(warned_of_direct_, true)) warn(direct.error());
    }
    HEADRACE_TRY(file->write_at(0, std::span(&part, 1)));
    // Its name and header are durable before anything in it is.
    if (options_.keep) HEADRACE_TRY(file->sync());
    const auto segment = std::make_shared<Segment>(header, std::move(file));
    const std::lock_guard lock(mutex_);
    segments_.emplace(header.number, segment);
    active_ = segment;
    note_peak();
    return {};
  });
  if (!made.ok()) {
    file.reset();
    if (auto removed = env_.remove_file(path); !removed.ok()) {
      warn(removed.error());
      const std::lock_guard lock(mutex_);
      foreign_file_bytes_ += segment_unit_bytes;
    }
  }
  return made;
}

}  // namespace headrace
