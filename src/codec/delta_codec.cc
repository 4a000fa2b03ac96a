// Entropy-coded variants of q8 and k8v4: the same values in fewer bytes. Format:
// docs/formats/codecs.md.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "codec/channel_streams.h"
#include "codec/codecs.h"
#include "codec/group_layout.h"
#include "codec/quantized_codec.h"
#include "kernel/kernels.h"

namespace headrace {
namespace {

using kernel::quant_block;

/// Channels are a dim of K or of V in one head, or the 4-bit codec's scales of 32 dims. Those of a
/// kind are cut into classes by how wide they spread; each class has a table of its own.
constexpr std::uint32_t classes_of_values = 4;
enum Kind : std::uint32_t { keys, values, key_scales, value_scales, kinds };
constexpr std::uint32_t class_count = 2 * classes_of_values + 2;

constexpr std::uint32_t first_class(std::uint32_t kind) {
  return kind == keys     ? 0
         : kind == values ? classes_of_values
                          : 2 * classes_of_values + kind - key_scales;
}
constexpr std::uint32_t classes_of(std::uint32_t kind) {
  return kind == keys || kind == values ? classes_of_values : 1;
}

/// How a channel is coded: one byte in the format.
struct ChannelMode {
  std::uint8_t table = 0;      ///< class, counted over all kinds
  bool is_difference = false;  ///< symbols are differences from the token before
};
constexpr std::uint8_t difference_bit = 0x80;

/// The symbols of a page by channel, and where they are in the bytes of the quantised codec.
class Planes {
 public:
  Planes(const QuantizedLayout& layout, const PagePlan& plan)
      : layout_(layout), shape_(plan.shape) {
    // A page has one precision but for its first tile, which may be finer: that one stays as it is.
    const TileBits usual = layout.bits(layout.tiles() - 1);
    bits_[keys] = usual.key;
    bits_[values] = usual.value;
    first_tile_ = layout.bits(0).key == usual.key && layout.bits(0).value == usual.value ? 0 : 1;
    blocks_ = (shape_.head_dim + quant_block - 1) / quant_block;
    for (std::uint32_t kind = 0; kind < kinds; ++kind) {
      channels_[kind] = shape_.kv_heads * channels_of_head(kind);
    }
    tokens_ = std::size_t{layout.tiles() - first_tile_} * tile_tokens;
  }

  std::uint32_t channels(std::uint32_t kind) const { return channels_[kind]; }
  std::size_t channel_count() const {
    return std::size_t{channels_[0]} + channels_[1] + channels_[2] + channels_[3];
  }
  /// Symbols of a channel.
  std::size_t tokens() const { return tokens_; }
  std::size_t symbol_count() const { return channel_count() * tokens_; }
  std::uint8_t mask(std::uint32_t kind) const {
    return kind <= values && bits_[kind] == 4 ? 15 : 255;
  }

  /// Calls visit(kind, channel, tile, bytes of 16 symbols) for the coded rows of 8 bits, and
  /// visit_pair(kind, lower channel, upper channel, tile, bytes) for those of 4 bits, and
  /// keep(offset, bytes) for what is not coded, all in the order of the quantised page.
  template <typename Visit, typename VisitPair, typename Keep>
  void for_each(Visit visit, VisitPair visit_pair, Keep keep) const {
    std::size_t at = layout_.mean_bytes();
    if (at > 0) keep(std::size_t{0}, at);
    for (std::uint32_t tile = 0; tile < layout_.tiles(); ++tile) {
      for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
        for (const std::uint32_t kind : {keys, values}) {
          const TileBits tile_bits = layout_.bits(tile);
          const std::uint32_t bits = kind == keys ? tile_bits.key : tile_bits.value;
          const std::size_t bytes = layout_.tile_bytes(bits);
          if (tile < first_tile_) {
            keep(at, bytes);
          } else {
            walk_tile(kind, head, tile - first_tile_, at, visit, visit_pair, keep);
          }
          at += bytes;
        }
      }
    }
  }

 private:
  std::uint32_t channels_of_head(std::uint32_t kind) const {
    if (kind <= values) return shape_.head_dim;
    return bits_[kind - key_scales] == 4 ? blocks_ : 0;
  }

  template <typename Visit, typename VisitPair, typename Keep>
  void walk_tile(std::uint32_t kind, std::uint32_t head, std::uint32_t tile, std::size_t at,
                 Visit visit, VisitPair visit_pair, Keep keep) const {
    const std::uint32_t channel = head * shape_.head_dim;
    for (std::uint32_t block = 0; block < blocks_; ++block) {
      const std::uint32_t first = block * quant_block;
      const std::uint32_t dims = std::min(quant_block, shape_.head_dim - first);
      if (bits_[kind] == 8) {
        keep(at, std::size_t{tile_tokens} * 2);
        at += std::size_t{tile_tokens} * 2;
        for (std::uint32_t d = first; d < first + dims; ++d, at += tile_tokens) {
          visit(kind, channel + d, tile, at);
        }
      } else {
        visit(kind + key_scales, head * blocks_ + block, tile, at);
        at += tile_tokens;
        for (std::uint32_t d = first; d < first + dims / 2; ++d, at += tile_tokens) {
          visit_pair(kind, channel + d, channel + d + dims / 2, tile, at);
        }
      }
    }
  }

  const QuantizedLayout& layout_;
  PageShape shape_;
  std::uint32_t bits_[2] = {};
  std::uint32_t first_tile_ = 0;
  std::uint32_t blocks_ = 0;
  std::uint32_t channels_[kinds] = {};
  std::size_t tokens_ = 0;
};

/// All channels in one buffer, by kind.
class Symbols {
 public:
  explicit Symbols(const Planes& planes) : planes_(planes), bytes_(planes.symbol_count()) {
    for (std::uint32_t kind = 1; kind < kinds; ++kind) {
      first_[kind] = first_[kind - 1] + planes.channels(kind - 1);
    }
  }
  std::size_t index(std::uint32_t kind, std::uint32_t channel) const {
    return first_[kind] + channel;
  }
  std::uint32_t kind_of(std::size_t index) const {
    std::uint32_t kind = 0;
    while (index >= first_[kind] + planes_.channels(kind)) ++kind;
    return kind;
  }
  std::uint8_t* row(std::uint32_t kind, std::uint32_t channel, std::uint32_t tile) {
    return bytes_.data() + index(kind, channel) * planes_.tokens() +
           std::size_t{tile} * tile_tokens;
  }
  std::span<std::uint8_t> channel(std::size_t index) {
    return std::span(bytes_).subspan(index * planes_.tokens(), planes_.tokens());
  }

  std::span<std::uint8_t> all() { return bytes_; }

  /// Fills the symbols from a quantised page and appends what is not coded to `kept`.
  void take(const std::byte* page, std::vector<std::byte>& kept) {
    planes_.for_each(
        [&](std::uint32_t kind, std::uint32_t channel, std::uint32_t tile, std::size_t at) {
          std::memcpy(row(kind, channel, tile), page + at, tile_tokens);
        },
        [&](std::uint32_t kind, std::uint32_t lower, std::uint32_t upper, std::uint32_t tile,
            std::size_t at) {
          const auto* pairs = reinterpret_cast<const std::uint8_t*>(page + at);
          std::uint8_t* low = row(kind, lower, tile);
          std::uint8_t* high = row(kind, upper, tile);
          for (std::size_t i = 0; i < tile_tokens; ++i) {
            low[i] = pairs[i] & 15;
            high[i] = static_cast<std::uint8_t>(pairs[i] >> 4 ^ 8);
          }
        },
        [&](std::size_t at, std::size_t bytes) {
          kept.insert(kept.end(), page + at, page + at + bytes);
        });
  }
  /// The way back.
  void give(std::byte* page, const std::byte* kept) {
    planes_.for_each(
        [&](std::uint32_t kind, std::uint32_t channel, std::uint32_t tile, std::size_t at) {
          std::memcpy(page + at, row(kind, channel, tile), tile_tokens);
        },
        [&](std::uint32_t kind, std::uint32_t lower, std::uint32_t upper, std::uint32_t tile,
            std::size_t at) {
          auto* pairs = reinterpret_cast<std::uint8_t*>(page + at);
          const std::uint8_t* low = row(kind, lower, tile);
          const std::uint8_t* high = row(kind, upper, tile);
          for (std::size_t i = 0; i < tile_tokens; ++i) {
            pairs[i] = static_cast<std::uint8_t>((low[i] & 15) | ((high[i] ^ 8) << 4));
          }
        },
        [&](std::size_t at, std::size_t bytes) {
          std::memcpy(page + at, kept, bytes);
          kept += bytes;
        });
  }
  std::size_t kept_bytes() const {
    std::size_t sum = 0;
    planes_.for_each([](auto...) {}, [](auto...) {},
                     [&](std::size_t, std::size_t bytes) { sum += bytes; });
    return sum;
  }

 private:
  const Planes& planes_;
  std::size_t first_[kinds] = {};
  std::vector<std::uint8_t> bytes_;
};

/// Chooses the mode of every channel, and turns the symbols of those that gain by it into
/// differences.
std::vector<ChannelMode> choose_modes(const Planes& planes, Symbols& symbols) {
  std::vector<ChannelMode> modes(planes.channel_count());
  std::size_t first = 0;
  for (std::uint32_t kind = 0; kind < kinds; first += planes.channels(kind++)) {
    const std::uint8_t mask = planes.mask(kind);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> spread;  // and channel
    for (std::uint32_t channel = 0; channel < planes.channels(kind); ++channel) {
      const std::span<std::uint8_t> row = symbols.channel(first + channel);
      // 8-bit values are signed; nibbles lie around 7.5; scales around their mean.
      std::uint32_t mean = 0;
      for (const std::uint8_t symbol : row) mean += symbol;
      mean = static_cast<std::uint32_t>(mean / row.size());
      std::uint32_t plain = 0;
      std::uint32_t differences = 0;
      std::uint8_t before = 0;
      for (const std::uint8_t symbol : row) {
        const auto step = static_cast<std::uint8_t>((symbol - before) & mask);
        differences += std::min<std::uint32_t>(step, mask + 1U - step);
        plain += kind <= values && mask == 255
                     ? std::min<std::uint32_t>(symbol, 256U - symbol)
                     : static_cast<std::uint32_t>(
                           std::abs(static_cast<int>(symbol) - static_cast<int>(mean)));
        before = symbol;
      }
      ChannelMode& mode = modes[first + channel];
      mode.is_difference = differences < plain;
      spread.emplace_back(std::min(plain, differences), channel);
      if (!mode.is_difference) continue;
      before = 0;
      for (std::uint8_t& symbol : row) {
        const std::uint8_t here = symbol;
        symbol = static_cast<std::uint8_t>((here - before) & mask);
        before = here;
      }
    }
    std::ranges::sort(spread);
    for (std::size_t i = 0; i < spread.size(); ++i) {
      modes[first + spread[i].second].table =
          static_cast<std::uint8_t>(first_class(kind) + i * classes_of(kind) / spread.size());
    }
  }
  return modes;
}

void undo_differences(std::span<std::uint8_t> row, std::uint8_t mask) {
  std::uint8_t sum = 0;
  for (std::uint8_t& symbol : row) {
    sum = static_cast<std::uint8_t>(sum + symbol);
    symbol = sum & mask;
  }
}

class DeltaCodec final : public Codec {
 public:
  explicit DeltaCodec(const Codec& quantized)
      : quantized_id_(quantized.id()), quantized_(quantized) {}

  CodecId id() const override {
    return CodecId(static_cast<std::uint16_t>(static_cast<std::uint16_t>(quantized_id_) + 16));
  }
  bool is_lossless() const override { return false; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return 1 + quantized_.encoded_bytes_max(shape);
  }

  std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const override {
    HEADRACE_CHECK(out.size() >= encoded_bytes_max(plan.shape), "room for a page");
    std::vector<std::byte> quantized(quantized_.encoded_bytes_max(plan.shape));
    quantized.resize(quantized_.encode(plan, page, quantized));
    const QuantizedLayout layout(quantized_id_, plan);
    const std::uint64_t coded =
        layout.is_identity() ? 0 : encode_coded(layout, plan, quantized, out);
    if (coded > 0 && coded <= quantized.size()) return coded;
    out[0] = stored_raw;
    std::memcpy(&out[1], quantized.data(), quantized.size());
    return 1 + quantized.size();
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    if (!encoded.empty() && encoded[0] == stored_raw) {
      return quantized_.decode(plan, encoded.subspan(1), page);
    }
    const QuantizedLayout layout(quantized_id_, plan);
    std::vector<std::byte> quantized(layout.bytes());
    if (encoded.empty() || encoded[0] != stored_coded || layout.is_identity() ||
        !decode_coded(layout, plan, encoded.subspan(1), quantized)) {
      return Error{ErrorCode::corrupt, "a damaged entropy-coded page"};
    }
    return quantized_.decode(plan, quantized, page);
  }

 private:
  static std::uint64_t encode_coded(const QuantizedLayout& layout, const PagePlan& plan,
                                    Bytes quantized, MutableBytes out);
  static bool decode_coded(const QuantizedLayout& layout, const PagePlan& plan, Bytes encoded,
                           MutableBytes quantized);

  CodecId quantized_id_;
  const Codec& quantized_;
};

/// The table of each channel.
std::vector<std::uint8_t> tables_of(std::span<const ChannelMode> modes) {
  std::vector<std::uint8_t> tables(modes.size());
  std::ranges::transform(modes, tables.begin(), &ChannelMode::table);
  return tables;
}

std::uint64_t DeltaCodec::encode_coded(const QuantizedLayout& layout, const PagePlan& plan,
                                       Bytes quantized, MutableBytes out) {
  const Planes planes(layout, plan);
  if (planes.tokens() == 0) return 0;
  Symbols symbols(planes);
  std::vector<std::byte> kept;
  symbols.take(quantized.data(), kept);
  const std::vector<ChannelMode> modes = choose_modes(planes, symbols);

  out[0] = stored_coded;
  std::size_t at = 1;
  if (out.size() < at + kept.size() + modes.size()) return 0;
  if (!kept.empty()) std::memcpy(&out[at], kept.data(), kept.size());
  at += kept.size();
  for (const ChannelMode& mode : modes) {
    out[at++] = static_cast<std::byte>(mode.table | (mode.is_difference ? difference_bit : 0));
  }
  const std::vector<std::uint8_t> tables = tables_of(modes);
  const std::size_t coded =
      write_channels({.table_of = tables, .tables = class_count, .tokens = planes.tokens()},
                     symbols.all(), out.subspan(at));
  return coded == 0 ? 0 : at + coded;
}

bool DeltaCodec::decode_coded(const QuantizedLayout& layout, const PagePlan& plan, Bytes encoded,
                              MutableBytes quantized) {
  const Planes planes(layout, plan);
  if (planes.tokens() == 0) return false;
  Symbols symbols(planes);
  const std::size_t kept_bytes = symbols.kept_bytes();
  if (encoded.size() < kept_bytes + planes.channel_count()) return false;
  const Bytes kept = encoded.first(kept_bytes);
  encoded = encoded.subspan(kept_bytes);
  std::vector<ChannelMode> modes(planes.channel_count());
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const auto byte = std::to_integer<std::uint8_t>(encoded[i]);
    modes[i] = {.table = static_cast<std::uint8_t>(byte & ~difference_bit),
                .is_difference = (byte & difference_bit) != 0};
    const std::uint32_t kind = symbols.kind_of(i);
    if (modes[i].table < first_class(kind) ||
        modes[i].table >= first_class(kind) + classes_of(kind)) {
      return false;
    }
  }
  const std::vector<std::uint8_t> tables = tables_of(modes);
  if (!read_channels({.table_of = tables, .tables = class_count, .tokens = planes.tokens()},
                     encoded.subspan(modes.size()), symbols.all())) {
    return false;
  }
  for (std::size_t i = 0; i < modes.size(); ++i) {
    if (modes[i].is_difference) {
      undo_differences(symbols.channel(i), planes.mask(symbols.kind_of(i)));
    }
  }
  symbols.give(quantized.data(), kept.data());
  return true;
}

}  // namespace

const Codec& q8_delta_codec() {
  static const DeltaCodec codec(q8_codec());
  return codec;
}
const Codec& k8v4_delta_codec() {
  static const DeltaCodec codec(k8v4_codec());
  return codec;
}

}  // namespace headrace
