#include "codec/group_layout.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace headrace {
namespace {

// A part of a head's bytes that a tile of 16 tokens owns: `rows` rows, in each of which the two
// groups of the tile have `run` bytes one after the other. Where the pool keeps token after token,
// it is one row.
struct Part {
  std::uint64_t start = 0;        // in the head
  std::uint64_t tile_stride = 0;  // from tile to tile
  std::uint64_t rows = 1;
  std::uint64_t run = 0;
  std::uint64_t bytes_in_group() const { return rows * run; }
};

struct Parts {
  Part part[4];
  std::size_t count = 0;
  void add(const Part& next) { part[count++] = next; }
};

// What a head consists of, in the order of a group: K, its scales, V, its scales.
Parts parts_of(const PageShape& shape) {
  const std::uint64_t dim = shape.head_dim;
  const std::uint64_t k_end = shape.k_bytes();
  Parts parts;
  switch (shape.type) {
    case KvType::f32:
    case KvType::f16: {
      const std::uint64_t size = shape.type == KvType::f32 ? 4 : 2;
      parts.add({0, dim * 16 * size, dim, 8 * size});
      parts.add({k_end, dim * 16 * size, 1, dim * 8 * size});
      break;
    }
    case KvType::bf16: {
      parts.add({0, dim * 32, dim / 2, 32});
      parts.add({k_end, dim * 32, 1, dim * 16});
      break;
    }
    case KvType::i16: {
      parts.add({0, dim * 32, 1, dim * 16});
      parts.add({shape.tokens * dim * 2, 32, 1, 16});
      parts.add({k_end, dim * 32, 1, dim * 16});
      break;
    }
    case KvType::q8: {
      const std::uint64_t tile = dim * 16 + dim / 32 * 32;  // bytes, then scales
      parts.add({0, tile, dim / 4, 32});
      parts.add({dim * 16, tile, dim / 32, 16});
      parts.add({k_end, tile, 1, dim * 8});
      parts.add({k_end + dim * 16, tile, dim / 32, 16});
      break;
    }
  }
  return parts;
}

// Moves the rows of one part of one tile between the pool and its one or two groups. With a run
// that the compiler knows, a row is a few moves of registers.
template <bool ToGroups, std::uint64_t KnownRun>
void move_rows(auto* tile, std::uint64_t rows, std::uint64_t any_run, auto* first, auto* second) {
  const std::uint64_t run = KnownRun != 0 ? KnownRun : any_run;
  for (std::uint64_t row = 0; row < rows; ++row, tile += 2 * run, first += run) {
    if constexpr (ToGroups) {
      std::memcpy(first, tile, run);
    } else {
      std::memcpy(tile, first, run);
    }
    if (second == nullptr) continue;
    if constexpr (ToGroups) {
      std::memcpy(second, tile + run, run);
    } else {
      std::memcpy(tile + run, second, run);
    }
    second += run;
  }
}

template <bool ToGroups>
void move_part(auto* tile, const Part& part, auto* first, auto* second) {
  if (part.run == 16) {
    move_rows<ToGroups, 16>(tile, part.rows, 16, first, second);
  } else if (part.run == 32) {
    move_rows<ToGroups, 32>(tile, part.rows, 32, first, second);
  } else {
    move_rows<ToGroups, 0>(tile, part.rows, part.run, first, second);
  }
}

/// The one or two groups of a tile; `second` may be null.
template <bool ToGroups>
void move_tile(const PageShape& shape, const Parts& parts, std::uint32_t tile, auto* page,
               auto* first, auto* second) {
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (std::size_t i = 0; i < parts.count; ++i) {
      const Part& part = parts.part[i];
      auto* const start = page + shape.k_offset(head) + part.start + tile * part.tile_stride;
      move_part<ToGroups>(start, part, first, second);
      first += part.bytes_in_group();
      if (second != nullptr) second += part.bytes_in_group();
    }
  }
}

/// Calls `move(bytes of the page, bytes of the group, how many)` for all that a kv head has in a
/// group, whose bytes are one after the other.
template <typename Move>
void for_each_run(const PageShape& shape, std::uint32_t kv_head, std::uint32_t group, auto* page,
                  auto* bytes, const Move& move) {
  const Parts parts = parts_of(shape);
  bytes += kv_head * (group_bytes(shape) / shape.kv_heads);
  page += shape.k_offset(kv_head);
  for (std::size_t i = 0; i < parts.count; ++i) {
    const Part& part = parts.part[i];
    auto* at = page + part.start + group / 2 * part.tile_stride + group % 2 * part.run;
    for (std::uint64_t row = 0; row < part.rows; ++row, at += 2 * part.run, bytes += part.run)
      move(at, bytes, part.run);
  }
}

void check(const PageShape& shape, std::uint32_t tokens_held, std::uint64_t page_bytes) {
  HEADRACE_CHECK(tokens_held > 0 && tokens_held <= shape.tokens, "a page holds some tokens");
  HEADRACE_CHECK(page_bytes == shape.bytes(), "a page has the size of its shape");
}

}  // namespace

std::uint64_t encode_groups(const PageShape& shape, std::uint32_t tokens_held, Bytes page,
                            MutableBytes out) {
  check(shape, tokens_held, page.size());
  const std::uint64_t bytes = grouped_bytes(shape, tokens_held);
  HEADRACE_CHECK(out.size() >= bytes, "the groups fit");
  const Parts parts = parts_of(shape);
  const std::uint64_t group = group_bytes(shape);
  const std::uint32_t groups = group_count(tokens_held);
  for (std::uint32_t at = 0; at < groups; at += 2) {
    std::byte* const first = out.data() + at * group;
    move_tile<true>(shape, parts, at / 2, page.data(), first,
                    at + 1 < groups ? first + group : nullptr);
  }
  return bytes;
}

void encode_group(const PageShape& shape, std::uint32_t group, Bytes page, MutableBytes out) {
  HEADRACE_CHECK(out.size() == group_bytes(shape), "a group has the size of its shape");
  for (std::uint32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    for_each_run(shape, kv_head, group, page.data(), out.data(),
                 [](const std::byte* in_page, std::byte* in_group, std::uint64_t run) {
                   std::memcpy(in_group, in_page, run);
                 });
  }
}

Result<void> decode_groups(const PageShape& shape, std::uint32_t tokens_held, Bytes groups,
                           MutableBytes page, const GroupCheck& check_groups) {
  check(shape, tokens_held, page.size());
  HEADRACE_CHECK(groups.size() == grouped_bytes(shape, tokens_held), "all groups are there");
  if (group_count(tokens_held) * group_tokens < shape.tokens) {
    std::ranges::fill(page, std::byte{0});
  }
  const Parts parts = parts_of(shape);
  const std::uint64_t group = group_bytes(shape);
  for (std::uint32_t at = 0; !groups.empty(); at += 2) {
    const Bytes tile = groups.first(std::min<std::uint64_t>(2 * group, groups.size()));
    groups = groups.subspan(tile.size());
    if (check_groups) HEADRACE_TRY(check_groups(at, tile));
    move_tile<false>(shape, parts, at / 2, page.data(), tile.data(),
                     tile.size() > group ? tile.data() + group : nullptr);
  }
  return {};
}

void decode_group(const PageShape& shape, std::uint32_t kv_head, std::uint32_t group, Bytes bytes,
                  std::byte* page) {
  HEADRACE_CHECK(bytes.size() == group_bytes(shape), "a group has the size of its shape");
  for_each_run(shape, kv_head, group, page, bytes.data(),
               [](std::byte* in_page, const std::byte* in_group, std::uint64_t run) {
                 std::memcpy(in_page, in_group, run);
               });
}

void decode_groups(const PageShape& shape, std::uint32_t tokens_held, Bytes groups,
                   MutableBytes page) {
  HEADRACE_CHECK(decode_groups(shape, tokens_held, groups, page, nullptr).ok(),
                 "nothing is checked");
}

}  // namespace headrace
