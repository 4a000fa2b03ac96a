// What a quantised page is made of, for the codec that writes it and the one that entropy-codes it.
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

}  // namespace headrace
