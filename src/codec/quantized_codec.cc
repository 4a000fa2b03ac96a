// Codecs that keep fewer bits: q8, k8v4 and q4. Format: docs/formats/codecs.md.
#include "codec/quantized_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "codec/codecs.h"
#include "codec/group_layout.h"
#include "codec/held_tiles.h"
#include "kernel/kernels.h"
#include "page/shape.h"

namespace headrace {

using kernel::kernels;
using kernel::PageHead;

namespace {

/// Dims that are rotated together: the largest power of two that divides head_dim, up to 64.
std::uint32_t rotated_dims(std::uint32_t head_dim) {
  return std::min(head_dim & (~head_dim + 1), 64U);
}
/// 1 / sqrt(rotated_dims): of 16, 32 or 64.
float rotation_factor(std::uint32_t dims) {
  return dims == 64 ? 0.125F : dims == 32 ? 0.17677669F : 0.25F;
}

}  // namespace

PageHead page_head(const PageShape& shape, const std::byte* page, std::uint32_t head) {
  auto* bytes = const_cast<std::byte*>(page);
  return {bytes + shape.k_offset(head), bytes + shape.v_offset(head), shape.type, shape.tokens,
          shape.head_dim};
}

void find_key_means(const PageHead& page, std::uint32_t tokens_held, TileValues& tile,
                    std::uint16_t* means) {
  std::vector<float> sums(std::size_t{tile_tokens} * page.head_dim);
  for (std::uint32_t first = 0; first < tokens_held; first += tile_tokens) {
    kernels().load_tile(page, first / tile_tokens, tile.k.data(), tile.v.data());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += tile.k[i];
  }
  kernels().tile_means(sums.data(), tokens_held, page.head_dim, means);
}

void center_keys(float* k, const std::uint16_t* means, std::uint32_t head_dim) {
  const std::uint32_t rotated = rotated_dims(head_dim);
  kernels().shift_tile(k, means, -1.0F, head_dim);
  kernels().rotate_tile(k, rotated, rotation_factor(rotated), head_dim);
}

void uncenter_keys(float* k, const std::uint16_t* means, std::uint32_t head_dim) {
  const std::uint32_t rotated = rotated_dims(head_dim);
  kernels().rotate_tile(k, rotated, rotation_factor(rotated), head_dim);
  kernels().shift_tile(k, means, 1.0F, head_dim);
}

std::size_t quantize_tile(std::uint32_t bits, const float* x, std::uint32_t head_dim,
                          std::byte* out) {
  return bits == 8 ? kernels().quantize_tile_8(x, head_dim, out)
                   : kernels().quantize_tile_4(x, head_dim, out);
}

std::size_t restore_tile(std::uint32_t bits, const std::byte* in, std::uint32_t head_dim,
                         float* x) {
  if (bits == 8) {
    kernels().restore_tile_8(in, head_dim, x);
    return kernel::tile_bytes_8(head_dim);
  }
  kernels().restore_tile_4(in, head_dim, x);
  return kernel::tile_bytes_4(head_dim);
}

namespace {

class QuantizedCodec final : public Codec {
 public:
  explicit QuantizedCodec(CodecId id) : id_(id) {}
  CodecId id() const override { return id_; }
  bool is_lossless() const override { return false; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return QuantizedLayout(id_, {shape, shape.tokens, 0, 0, 0}).bytes();
  }

  std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const override {
    const QuantizedLayout layout(id_, plan);
    if (layout.is_identity()) return raw_codec().encode(plan, page, out);
    const PageShape& shape = plan.shape;
    HEADRACE_CHECK(out.size() >= layout.bytes(), "room for a page");
    TileValues tile;
    std::vector<std::uint16_t> means(layout.mean_bytes() / 2);
    for (std::uint32_t head = 0; !means.empty() && head < shape.kv_heads; ++head) {
      find_key_means(page_head(shape, page.data(), head), plan.tokens_held, tile,
                     &means[head * shape.head_dim]);
    }
    std::ranges::copy(std::as_bytes(std::span(means)), out.begin());
    std::byte* at = out.data() + layout.mean_bytes();
    for (std::uint32_t i = 0; i < layout.tiles(); ++i) {
      const TileBits bits = layout.bits(i);
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
        kernels().load_tile(page_head(shape, page.data(), head), i, tile.k.data(), tile.v.data());
        if (bits.key == 4) {
          center_keys(tile.k.data(), &means[head * shape.head_dim], shape.head_dim);
        }
        at += quantize_tile(bits.key, tile.k.data(), shape.head_dim, at);
        at += quantize_tile(bits.value, tile.v.data(), shape.head_dim, at);
      }
    }
    return static_cast<std::uint64_t>(at - out.data());
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    const QuantizedLayout layout(id_, plan);
    if (layout.is_identity()) return raw_codec().decode(plan, encoded, page);
    const PageShape& shape = plan.shape;
    if (encoded.size() != layout.bytes()) {
      return Error{ErrorCode::corrupt, "a quantised page has another length than its tokens need"};
    }
    TileValues tile;
    std::vector<std::uint16_t> means(layout.mean_bytes() / 2);
    std::ranges::copy(encoded.first(layout.mean_bytes()),
                      std::as_writable_bytes(std::span(means)).begin());
    const std::byte* at = encoded.data() + layout.mean_bytes();
    for (std::uint32_t i = 0; i < layout.tiles(); ++i) {
      const TileBits bits = layout.bits(i);
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
        at += restore_tile(bits.key, at, shape.head_dim, tile.k.data());
        at += restore_tile(bits.value, at, shape.head_dim, tile.v.data());
        if (bits.key == 4) {
          uncenter_keys(tile.k.data(), &means[head * shape.head_dim], shape.head_dim);
        }
        kernels().store_tile(tile.k.data(), tile.v.data(), i, page_head(shape, page.data(), head));
      }
    }
    clear_tokens(shape, plan.tokens_held, page);
    return {};
  }

 private:
  CodecId id_;
};

}  // namespace

QuantizedLayout::QuantizedLayout(CodecId id, const PagePlan& plan)
    : id_(id), plan_(plan), tiles_(HeldTiles(plan.shape, plan.tokens_held).tiles()) {}

TileBits QuantizedLayout::bits(std::uint32_t tile) const {
  if (id_ == CodecId::q8 || is_fine() || is_sink(plan_, tile)) return {8, 8};
  return {id_ == CodecId::k8v4 ? 8U : 4U, 4};
}

std::uint64_t QuantizedLayout::bytes() const {
  if (is_identity()) return grouped_bytes(plan_.shape, plan_.tokens_held);
  std::uint64_t bytes = mean_bytes();
  for (std::uint32_t tile = 0; tile < tiles_; ++tile) {
    const TileBits tile_bits = bits(tile);
    bytes += plan_.shape.kv_heads * (tile_bytes(tile_bits.key) + tile_bytes(tile_bits.value));
  }
  return bytes;
}

const Codec& q8_codec() {
  static const QuantizedCodec codec(CodecId::q8);
  return codec;
}
const Codec& k8v4_codec() {
  static const QuantizedCodec codec(CodecId::k8v4);
  return codec;
}
const Codec& q4_codec() {
  static const QuantizedCodec codec(CodecId::q4);
  return codec;
}

}  // namespace headrace
