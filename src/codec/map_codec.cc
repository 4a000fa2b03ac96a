#include "codec/map_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/codecs.h"
#include "codec/held_tiles.h"
#include "codec/quantized_codec.h"
#include "kernel/kernels.h"
#include "page/shape.h"

namespace headrace {
namespace {

using kernel::kernels;
using kernel::PageHead;

constexpr std::byte encode_precision(HeadPrecision head) {
  return static_cast<std::byte>(static_cast<unsigned>(head.key) | static_cast<unsigned>(head.value)
                                                                      << 4U);
}

Result<HeadPrecision> decode_precision(std::byte byte) {
  const HeadPrecision head = {Precision(static_cast<std::uint8_t>(byte & std::byte{15})),
                              Precision(static_cast<std::uint8_t>(byte >> 4))};
  if (head.key <= Precision::q4 && head.value <= Precision::q4) return head;
  return Error{ErrorCode::corrupt, "a page has a precision that there is not"};
}

/// Where the bytes of a head are in an encoded page: those of K, then those of V.
class HeadLayout {
 public:
  HeadLayout(const PagePlan& plan, HeadPrecision head)
      : plan_(plan), head_(head), held_(plan.shape, plan.tokens_held) {}

  std::uint32_t tiles() const { return held_.tiles(); }
  std::uint32_t key_bits(std::uint32_t tile) const { return bits(head_.key, tile); }
  std::uint32_t value_bits(std::uint32_t tile) const { return bits(head_.value, tile); }
  std::size_t mean_bytes() const {
    return head_.key == Precision::q4 ? std::size_t{plan_.shape.head_dim} * 2 : 0;
  }
  std::size_t key_bytes() const {
    if (head_.key == Precision::raw) return tiles() * held_.key_tile_bytes() + held_.scale_bytes();
    return mean_bytes() + quantized_bytes(head_.key);
  }
  std::size_t value_bytes() const {
    if (head_.value == Precision::raw) return tiles() * held_.value_tile_bytes();
    return quantized_bytes(head_.value);
  }

  /// Calls copy(offset in the page, offset in the head's encoded bytes, bytes) for what is raw.
  template <typename Copy>
  void for_each_raw_part(std::uint32_t kv_head, Copy copy) const {
    const std::size_t key_tiles = tiles() * held_.key_tile_bytes();
    if (head_.key == Precision::raw) {
      copy(held_.key_offset(kv_head, 0), std::size_t{0}, key_tiles);
      if (held_.scale_bytes() > 0) {
        copy(held_.scale_offset(kv_head), key_tiles, held_.scale_bytes());
      }
    }
    if (head_.value == Precision::raw) {
      copy(held_.value_offset(kv_head, 0), key_bytes(), value_bytes());
    }
  }

 private:
  /// 0: none, it is raw. The first tokens of a text draw much attention whatever they say.
  std::uint32_t bits(Precision precision, std::uint32_t tile) const {
    if (precision == Precision::raw) return 0;
    return precision == Precision::q8 || is_sink(plan_, tile) ? 8 : 4;
  }
  std::size_t quantized_bytes(Precision precision) const {
    std::size_t bytes = 0;
    for (std::uint32_t tile = 0; tile < tiles(); ++tile) {
      bytes += bits(precision, tile) == 8 ? kernel::tile_bytes_8(plan_.shape.head_dim)
                                          : kernel::tile_bytes_4(plan_.shape.head_dim);
    }
    return bytes;
  }

  PagePlan plan_;
  HeadPrecision head_;
  HeldTiles held_;
};

class MapCodec final : public Codec {
 public:
  MapCodec() = default;
  explicit MapCodec(PrecisionMap map) : map_(std::move(map)), settings_(map_.digest()) {}

  CodecId id() const override { return CodecId::map; }
  bool is_lossless() const override { return false; }
  Digest128 settings() const override { return settings_; }
  /// Of any map, so that a tier opened with one copies the pages of another.
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return shape.bytes() + shape.kv_heads * (1 + std::uint64_t{shape.head_dim} * 2);
  }

  std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const override {
    const std::uint32_t kv_heads = plan.shape.kv_heads;
    HEADRACE_CHECK(plan.layer < map_.layers() && kv_heads == map_.kv_heads,
                   "the map has this page's layer and heads");
    HEADRACE_CHECK(out.size() >= encoded_bytes_max(plan.shape), "room for a page");
    std::byte* at = out.data() + kv_heads;
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      HeadPrecision precision = map_.head(plan.layer, head);
      if (plan.shape.type == KvType::q8) {  // is that already
        if (precision.key == Precision::q8) precision.key = Precision::raw;
        if (precision.value == Precision::q8) precision.value = Precision::raw;
      }
      out[head] = encode_precision(precision);
      at += encode_head({plan, precision}, plan, head, page, at);
    }
    return static_cast<std::uint64_t>(at - out.data());
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    const std::uint32_t kv_heads = plan.shape.kv_heads;
    std::vector<HeadLayout> layouts;
    std::uint64_t bytes = kv_heads;
    for (std::uint32_t head = 0; head < kv_heads && head < encoded.size(); ++head) {
      HEADRACE_TRY_ASSIGN(const HeadPrecision precision, decode_precision(encoded[head]));
      layouts.emplace_back(plan, precision);
      bytes += layouts.back().key_bytes() + layouts.back().value_bytes();
    }
    if (encoded.size() != bytes) {
      return Error{ErrorCode::corrupt, "a page of a map has another length than its heads need"};
    }
    const std::byte* at = encoded.data() + kv_heads;
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      decode_head(layouts[head], plan, head, at, page);
      at += layouts[head].key_bytes() + layouts[head].value_bytes();
    }
    clear_tokens(plan.shape, plan.tokens_held, page);
    return {};
  }

 private:
  static std::size_t encode_head(const HeadLayout& layout, const PagePlan& plan, std::uint32_t head,
                                 Bytes page, std::byte* out) {
    const std::uint32_t head_dim = plan.shape.head_dim;
    const PageHead source = page_head(plan.shape, page.data(), head);
    TileValues tile;
    std::vector<std::uint16_t> means(layout.mean_bytes() / 2);
    if (!means.empty()) find_key_means(source, plan.tokens_held, tile, means.data());
    std::ranges::copy(std::as_bytes(std::span(means)), out);
    std::byte* key_at = out + layout.mean_bytes();
    std::byte* value_at = out + layout.key_bytes();
    for (std::uint32_t i = 0; i < layout.tiles(); ++i) {
      const std::uint32_t key_bits = layout.key_bits(i);
      const std::uint32_t value_bits = layout.value_bits(i);
      if (key_bits == 0 && value_bits == 0) break;
      kernels().load_tile(source, i, tile.k.data(), tile.v.data());
      if (key_bits == 4) center_keys(tile.k.data(), means.data(), head_dim);
      if (key_bits > 0) key_at += quantize_tile(key_bits, tile.k.data(), head_dim, key_at);
      if (value_bits > 0) value_at += quantize_tile(value_bits, tile.v.data(), head_dim, value_at);
    }
    layout.for_each_raw_part(head, [&](std::size_t from, std::size_t to, std::size_t bytes) {
      std::memcpy(out + to, page.data() + from, bytes);
    });
    return layout.key_bytes() + layout.value_bytes();
  }

  static void decode_head(const HeadLayout& layout, const PagePlan& plan, std::uint32_t head,
                          const std::byte* in, MutableBytes page) {
    const std::uint32_t head_dim = plan.shape.head_dim;
    const PageHead target = page_head(plan.shape, page.data(), head);
    TileValues tile;
    const std::size_t values = std::size_t{tile_tokens} * head_dim;
    std::vector<std::uint16_t> means(layout.mean_bytes() / 2);
    if (!means.empty()) std::memcpy(means.data(), in, layout.mean_bytes());
    const std::byte* key_at = in + layout.mean_bytes();
    const std::byte* value_at = in + layout.key_bytes();
    // store_tile() writes both; what is raw takes its place after that.
    std::fill_n(tile.k.begin(), values, 0.0F);
    std::fill_n(tile.v.begin(), values, 0.0F);
    for (std::uint32_t i = 0; i < layout.tiles(); ++i) {
      const std::uint32_t key_bits = layout.key_bits(i);
      const std::uint32_t value_bits = layout.value_bits(i);
      if (key_bits == 0 && value_bits == 0) break;
      if (key_bits > 0) key_at += restore_tile(key_bits, key_at, head_dim, tile.k.data());
      if (key_bits == 4) uncenter_keys(tile.k.data(), means.data(), head_dim);
      if (value_bits > 0) value_at += restore_tile(value_bits, value_at, head_dim, tile.v.data());
      kernels().store_tile(tile.k.data(), tile.v.data(), i, target);
    }
    layout.for_each_raw_part(head, [&](std::size_t to, std::size_t from, std::size_t bytes) {
      std::memcpy(page.data() + to, in + from, bytes);
    });
  }

  PrecisionMap map_;
  Digest128 settings_;
};

}  // namespace

std::unique_ptr<Codec> new_map_codec(PrecisionMap map) {
  return std::make_unique<MapCodec>(std::move(map));
}

const Codec& any_map_codec() {
  static const MapCodec codec;
  return codec;
}

}  // namespace headrace
