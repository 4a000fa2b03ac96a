// What a quantised page is made of, and parts of the codec that writes it, for those that
// entropy-code such pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "kernel/kernels.h"

namespace headrace {

/// Bits of the values of a tile: 8 or 4.
struct TileBits {
  std::uint32_t key = 8;
  std::uint32_t value = 8;
};

/// Means of the keys, f16 [kv head][dim], where there are keys of 4 bits; then tile by tile
/// [kv head]{K, V} (kernel/tile-inl.h).
class QuantizedLayout {
 public:
  /// `id`: q8, k8v4 or q4.
  QuantizedLayout(CodecId id, const PagePlan& plan);

  std::uint32_t tiles() const { return tiles_; }
  /// Pages of type q8 stay as they are under q8.
  bool is_identity() const { return id_ == CodecId::q8 && plan_.shape.type == KvType::q8; }
  TileBits bits(std::uint32_t tile) const;
  std::size_t mean_bytes() const {
    if (id_ != CodecId::q4 || is_fine()) return 0;
    return std::size_t{plan_.shape.kv_heads} * plan_.shape.head_dim * 2;
  }
  std::size_t tile_bytes(std::uint32_t bits) const {
    return bits == 8 ? kernel::tile_bytes_8(plan_.shape.head_dim)
                     : kernel::tile_bytes_4(plan_.shape.head_dim);
  }
  std::uint64_t bytes() const;

 private:
  /// The first layers matter most: four keep 8 bits.
  bool is_fine() const { return plan_.layer < 4; }

  CodecId id_;
  PagePlan plan_;
  std::uint32_t tiles_;
};

/// A kv head of a pool page, to read tiles from with load_tile().
kernel::PageHead head_of(const PageShape& shape, const std::byte* page, std::uint32_t head);
/// The same, to write.
kernel::PageHead head_of(const PageShape& shape, std::byte* page, std::uint32_t head);

/// Zeros the rows from token `from` to the end of its tile, as the pool has them behind those held.
void clear_tokens(const kernel::PageHead& page, std::uint32_t from);

/// Whether a tile holds the first tokens of a text, which draw much attention whatever they say.
constexpr bool is_sink(const PagePlan& plan, std::uint32_t tile) {
  return plan.first_position == 0 && tile == 0;
}

}  // namespace headrace
