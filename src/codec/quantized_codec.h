// What a quantised page is made of, and parts of the codec that writes it, for codecs that
// entropy-code such pages or mix them with raw ones.
#pragma once

#include <array>
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

/// K or V of 16 tokens in one head: f32 [dim][16 tokens].
struct TileValues {
  static constexpr std::size_t head_dim_max = 1024;
  alignas(64) std::array<float, tile_tokens * head_dim_max> k;
  alignas(64) std::array<float, tile_tokens * head_dim_max> v;
};

/// One kv head of a pool page. Has no const twin: a reader of the page gets one too.
kernel::PageHead page_head(const PageShape& shape, const std::byte* page, std::uint32_t head);

/// Keys of 4 bits: the means of their dims, f16 [dim], ...
void find_key_means(const kernel::PageHead& page, std::uint32_t tokens_held, TileValues& tile,
                    std::uint16_t* means);
/// ... without which and rotated they are quantised, ...
void center_keys(float* k, const std::uint16_t* means, std::uint32_t head_dim);
/// ... and the way back.
void uncenter_keys(float* k, const std::uint16_t* means, std::uint32_t head_dim);

/// K or V of a tile in 8 or 4 bits. Both return its bytes.
std::size_t quantize_tile(std::uint32_t bits, const float* x, std::uint32_t head_dim,
                          std::byte* out);
std::size_t restore_tile(std::uint32_t bits, const std::byte* in, std::uint32_t head_dim, float* x);

/// Whether a tile holds the first tokens of a text, which draw much attention whatever they say.
constexpr bool is_sink(const PagePlan& plan, std::uint32_t tile) {
  return plan.first_position == 0 && tile == 0;
}

}  // namespace headrace
