// What the page types of the fold share.
#pragma once

namespace headrace::kernel::HEADRACE_ISA {

/// Tokens of a page that some vector of a call reads, in whole tiles.
struct FoldRange {
  std::uint32_t first_tile;
  std::uint32_t end_tile;
};

/// Some groups of tokens of a page, by their numbers in it, ascending.
struct TokenGroups {
  const std::uint16_t* group;
  std::uint32_t count;
};

/// For a few query vectors a page is read from memory, for a few dozen from a cache. From memory,
/// loads run ahead of the machine's own prefetching, which begins anew at every page.
template <int Vectors, bool IsOneStream = true>
HEADRACE_INLINE void prefetch_for(const void* p) {
  constexpr std::size_t ahead = 4096;
  if constexpr (IsOneStream && Vectors <= 4)
    __builtin_prefetch(static_cast<const std::byte*>(p) + ahead);
}

struct ByteRange {
  const std::byte* first;
  std::size_t bytes;
};

/// What comes next need not lie behind what is read now: whole ranges are asked for by name.
HEADRACE_INLINE void prefetch(ByteRange range) {
  for (std::size_t i = 0; i < range.bytes; i += 64) __builtin_prefetch(range.first + i);
}

/// How many sums of a score and of a value are kept in registers at once.
struct SumTiles {
  static constexpr bool keeps_groups_together = false;
#if defined(HEADRACE_ISA_AVX512)
  static constexpr int score_vectors = 6;
  static constexpr int score_tiles = 4;    // 4 keys and 24 sums in 32 registers
  static constexpr int value_vectors = 6;  // 4 values and 24 sums
#else
  static constexpr int score_vectors = 4;
  static constexpr int score_tiles = 1;
  static constexpr int value_vectors = 2;
#endif
};

template <int Vectors, int Tiles>
HEADRACE_INLINE void store_scores(const F (&sums)[Vectors][Tiles], std::uint32_t tile, float* out,
                                  std::size_t stride) {
  for (int i = 0; i < Vectors; ++i) {
    for (int j = 0; j < Tiles; ++j) {
      store(
          out + static_cast<std::size_t>(i) * stride + (tile + static_cast<std::size_t>(j)) * lanes,
          sums[i][j]);
    }
  }
}

template <int Vectors, int Parts>
HEADRACE_INLINE void store_values(const F (&sums)[Vectors][Parts], std::uint32_t d,
                                  float* const* out) {
  for (int i = 0; i < Vectors; ++i) {
    for (int j = 0; j < Parts; ++j)
      store(out[i] + d + static_cast<std::size_t>(j) * lanes, sums[i][j]);
  }
}

}  // namespace headrace::kernel::HEADRACE_ISA
