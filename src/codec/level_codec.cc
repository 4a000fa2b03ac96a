// q4-delta: keys and values as whole numbers of steps, called levels, entropy-coded. Bits go where
// they matter: a loud token or a quiet one costs the same, and nothing is cut off. Format:
// docs/formats/codecs.md.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/channel_streams.h"
#include "codec/codecs.h"
#include "codec/held_tiles.h"
#include "codec/quantized_codec.h"
#include "kernel/kernels.h"
#include "page/shape.h"

namespace headrace {
namespace {

using kernel::kernels;
using kernel::lanes;

/// Steps, in spreads of what they cut. Measured on SmolLM2: with these, keys and values move the
/// predictions about as far as each other, and together less than q4 does.
constexpr float key_step = 0.35F;
constexpr float value_step = 0.5F;

/// Channels are a dim of K or of V in one head, or the scales of a head's values.
enum Kind : std::uint32_t { keys, values, value_scales, kinds };
/// Those of a kind are cut into classes by how far they spread; each class has a table.
constexpr std::array<std::uint32_t, kinds + 1> first_table = {0, 4, 6, 7};
constexpr std::uint32_t table_count = first_table[kinds];

/// One byte for each channel: its table, and how many quarters of a symbol predict the next one.
constexpr std::uint32_t quarters_shift = 5;
constexpr std::uint32_t quarters_max = 4;

std::int8_t predicted(std::uint32_t quarters, std::int8_t before) {
  return static_cast<std::int8_t>((static_cast<int>(quarters) * before + 2) >> 2);
}

constexpr std::size_t scale_codes = 256;
constexpr std::array<float, scale_codes> scale_of = [] {
  std::array<float, scale_codes> scales;
  for (std::uint32_t code = 0; code < scale_codes; ++code) scales[code] = kernel::tile_scale(code);
  return scales;
}();
float inverse_of(std::uint32_t code) { return code == 0 ? 0.0F : 1.0F / scale_of[code]; }

/// The scales of values are two to a power of two: every fourth of those that there are.
constexpr std::uint32_t value_scale_stride = 4;

/// The code of the nearest of those scales that are `stride` apart, a power of two.
std::uint32_t nearest_scale(float x, std::uint32_t stride) {
  // The upper bits of a float count eighths of powers of two. Code 0 is at 2^-18.
  constexpr std::uint32_t eighth = 1U << 20;
  constexpr std::uint32_t at_zero = (127U - 18U) << 3;
  const std::uint32_t unit = eighth * stride;
  const std::uint32_t steps = (std::bit_cast<std::uint32_t>(x) + unit / 2) / unit * stride;
  return std::clamp(steps, at_zero, at_zero + 256U - stride) - at_zero;
}

/// What a page is cut into.
struct LevelLayout {
  explicit LevelLayout(const PagePlan& plan)
      : tiles(HeldTiles(plan.shape, plan.tokens_held).tiles()),
        first_tile(is_sink(plan, 0) ? 1 : 0),
        tokens(std::size_t{tiles - first_tile} * tile_tokens),
        dims(std::size_t{plan.shape.kv_heads} * plan.shape.head_dim),
        kept_bytes(first_tile * 2 * plan.shape.kv_heads *
                   kernel::tile_bytes_8(plan.shape.head_dim)),
        channels(2 * dims + plan.shape.kv_heads) {}

  std::size_t first_channel(std::uint32_t kind) const {
    return kind == keys ? 0 : kind == values ? dims : kind == value_scales ? 2 * dims : channels;
  }
  /// Everything before the modes: the first tile, means of keys, scales of keys.
  std::size_t front_bytes() const { return kept_bytes + 3 * dims; }

  std::uint32_t tiles;
  std::uint32_t first_tile;  ///< that has levels
  std::size_t tokens;        ///< of a channel
  std::size_t dims;          ///< of all heads
  std::size_t kept_bytes;
  std::size_t channels;
};

/// A page as levels.
struct Levels {
  explicit Levels(const LevelLayout& layout)
      : kept(layout.kept_bytes),
        means(layout.dims),
        key_scales(layout.dims),
        modes(layout.channels),
        tables(layout.channels),
        tokens(layout.tokens),
        symbols(layout.channels * layout.tokens) {}

  std::int8_t* row(std::size_t channel) { return symbols.data() + channel * tokens; }
  std::span<std::uint8_t> bytes() {
    return {reinterpret_cast<std::uint8_t*>(symbols.data()), symbols.size()};
  }
  ChannelPlan plan() const { return {.table_of = tables, .tables = table_count, .tokens = tokens}; }

  std::vector<std::byte> kept;
  std::vector<std::uint16_t> means;      ///< of keys, f16
  std::vector<std::uint8_t> key_scales;  ///< of each dim
  std::vector<std::uint8_t> modes;       ///< of each channel
  std::vector<std::uint8_t> tables;      ///< the lower bits of the modes
  std::size_t tokens;
  std::vector<std::int8_t> symbols;  ///< [channel][tokens]
};

/// Nearly the logarithm, in 2^-23 of a power of two: exact at powers of two, straight between them,
/// and the same on every machine.
std::int64_t logarithm(float x) { return std::bit_cast<std::int32_t>(x); }
float from_logarithm(std::int64_t x) {
  constexpr std::int64_t largest = 0x7F7F'FFFF;
  return std::bit_cast<float>(static_cast<std::int32_t>(std::clamp<std::int64_t>(x, 0, largest)));
}

/// The step of each dim of the keys from its variance and its largest value. The steps of a layer
/// lie around its variances' geometric mean. Within a head, dims that are loud are so in queries as
/// well: their errors count for more, so their steps are smaller.
void choose_key_scales(std::span<float> variances, std::span<const float> largest,
                       std::size_t head_dim, std::span<std::uint8_t> scales) {
  float mean = 0;
  for (const float variance : variances) mean += variance;
  mean /= static_cast<float>(variances.size());
  std::int64_t layer = 0;
  for (float& variance : variances) {
    variance = std::max(variance, mean * 0x1p-10F);  // one that is silent says nothing
    layer += logarithm(variance);
  }
  layer /= static_cast<std::int64_t>(variances.size());
  for (std::size_t first = 0; first < variances.size(); first += head_dim) {
    std::int64_t head = 0;
    for (std::size_t d = 0; d < head_dim; ++d) head += logarithm(variances[first + d]);
    head /= static_cast<std::int64_t>(head_dim);
    for (std::size_t d = first; d < first + head_dim; ++d) {
      const float spread = std::sqrt(from_logarithm(layer + (head - logarithm(variances[d])) / 2));
      std::uint32_t code = nearest_scale(key_step * spread, 1);
      while (code + 1 < scale_codes && largest[d] > 127.0F * scale_of[code]) ++code;
      scales[d] = static_cast<std::uint8_t>(code);
    }
  }
}

/// Cuts the keys of all tiles but the first into levels. False: they are not finite.
bool cut_keys(const PagePlan& plan, const LevelLayout& layout, std::vector<float>& k,
              Levels& levels) {
  const std::uint32_t head_dim = plan.shape.head_dim;
  const std::size_t tile_values = std::size_t{lanes} * head_dim;
  const std::uint32_t tiles = layout.tiles - layout.first_tile;
  const std::uint32_t held = plan.tokens_held - layout.first_tile * tile_tokens;
  std::vector<float> variances(layout.dims);
  std::vector<float> largest(layout.dims);
  std::vector<float> sums(tile_values);
  float* at = k.data();
  for (std::uint32_t head = 0; head < plan.shape.kv_heads; ++head, at += tiles * tile_values) {
    const std::size_t channel = std::size_t{head} * head_dim;
    std::ranges::fill(sums, 0.0F);
    for (std::size_t i = 0; i < tiles * tile_values; ++i) sums[i % tile_values] += at[i];
    kernels().tile_means(sums.data(), held, head_dim, &levels.means[channel]);
    for (std::uint32_t tile = 0; tile < tiles; ++tile) {
      float* x = at + tile * tile_values;
      kernels().shift_tile(x, &levels.means[channel], -1.0F, head_dim);
      const std::uint32_t here = std::min(held - tile * tile_tokens, tile_tokens);
      for (std::uint32_t d = 0; d < head_dim; ++d, x += lanes) {
        std::fill(x + here, x + lanes, 0.0F);
        for (std::uint32_t i = 0; i < lanes; ++i) {
          variances[channel + d] += x[i] * x[i];
          largest[channel + d] = std::max(largest[channel + d], std::fabs(x[i]));
        }
      }
    }
  }
  for (float& variance : variances) {
    variance /= static_cast<float>(held);
    if (!std::isfinite(variance)) return false;
  }
  choose_key_scales(variances, largest, head_dim, levels.key_scales);
  std::vector<float> inverses(tile_values);
  at = k.data();
  for (std::uint32_t head = 0; head < plan.shape.kv_heads; ++head) {
    const std::size_t channel = std::size_t{head} * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      std::fill_n(&inverses[std::size_t{d} * lanes], lanes,
                  inverse_of(levels.key_scales[channel + d]));
    }
    for (std::uint32_t tile = 0; tile < tiles; ++tile, at += tile_values) {
      kernels().quantize_levels(at, {inverses.data(), lanes}, head_dim, layout.tokens,
                                levels.row(channel) + std::size_t{tile} * lanes);
    }
  }
  return true;
}

/// Cuts the values of one head and tile into levels of steps by their token: attention reads much
/// of tokens whose values are small. False: they are not finite.
bool cut_values(const LevelLayout& layout, std::uint32_t head, std::uint32_t tile, const float* v,
                std::uint32_t head_dim, Levels& levels) {
  alignas(64) std::array<float, lanes> squares = {};
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    for (std::uint32_t i = 0; i < lanes; ++i) squares[i] += v[d * lanes + i] * v[d * lanes + i];
  }
  alignas(64) std::array<float, lanes> inverses;
  std::int8_t* scales = levels.row(layout.first_channel(value_scales) + head) + tile * lanes;
  for (std::uint32_t i = 0; i < lanes; ++i) {
    if (!std::isfinite(squares[i])) return false;
    const float spread = std::sqrt(squares[i] / static_cast<float>(head_dim));
    const std::uint32_t code = nearest_scale(value_step * spread, value_scale_stride);
    scales[i] = static_cast<std::int8_t>(code / value_scale_stride);
    inverses[i] = inverse_of(code);
  }
  kernels().quantize_levels(
      v, {inverses.data(), 0}, head_dim, layout.tokens,
      levels.row(layout.first_channel(values) + head * head_dim) + std::size_t{tile} * lanes);
  return true;
}

/// False: not finite.
bool cut_page(const PagePlan& plan, const LevelLayout& layout, Bytes page, Levels& levels) {
  const std::uint32_t head_dim = plan.shape.head_dim;
  const std::size_t tile_values = std::size_t{lanes} * head_dim;
  std::vector<float> k(layout.dims * layout.tokens);
  std::vector<float> first_k(tile_values);
  std::vector<float> v(tile_values);
  float* next = k.data();
  std::byte* kept = levels.kept.data();
  for (std::uint32_t head = 0; head < plan.shape.kv_heads; ++head) {
    for (std::uint32_t tile = 0; tile < layout.tiles; ++tile) {
      const bool is_kept = tile < layout.first_tile;
      kernels().load_tile(page_head(plan.shape, page.data(), head), tile,
                          is_kept ? first_k.data() : next, v.data());
      if (is_kept) {
        kept += kernels().quantize_tile_8(first_k.data(), head_dim, kept);
        kept += kernels().quantize_tile_8(v.data(), head_dim, kept);
        continue;
      }
      next += tile_values;
      if (!cut_values(layout, head, tile - layout.first_tile, v.data(), head_dim, levels)) {
        return false;
      }
    }
  }
  return cut_keys(plan, layout, k, levels);
}

/// Chooses how each channel is coded, and turns its symbols into what prediction leaves of them.
void choose_modes(const LevelLayout& layout, Levels& levels) {
  std::vector<std::pair<std::uint32_t, std::size_t>> spread;  // and channel
  for (std::uint32_t kind = 0; kind < kinds; ++kind) {
    spread.clear();
    for (std::size_t i = layout.first_channel(kind); i < layout.first_channel(kind + 1); ++i) {
      std::int8_t* const row = levels.row(i);
      std::uint32_t least = ~0U;
      std::uint32_t best = 0;
      for (std::uint32_t quarters = 0; quarters <= quarters_max; ++quarters) {
        std::uint32_t sum = 0;
        std::int8_t before = 0;
        for (std::size_t t = 0; t < levels.tokens; before = row[t++]) {
          const auto rest = static_cast<std::int8_t>(row[t] - predicted(quarters, before));
          sum += static_cast<std::uint32_t>(std::abs(static_cast<int>(rest)));
        }
        if (sum < least) {
          least = sum;
          best = quarters;
        }
      }
      for (std::size_t t = levels.tokens - 1; t > 0; --t) {
        row[t] = static_cast<std::int8_t>(row[t] - predicted(best, row[t - 1]));
      }
      levels.modes[i] = static_cast<std::uint8_t>(best << quarters_shift);
      spread.emplace_back(least, i);
    }
    std::ranges::sort(spread);
    const std::uint32_t tables = first_table[kind + 1] - first_table[kind];
    for (std::size_t i = 0; i < spread.size(); ++i) {
      const auto table = static_cast<std::uint8_t>(first_table[kind] + i * tables / spread.size());
      levels.tables[spread[i].second] = table;
      levels.modes[spread[i].second] |= table;
    }
  }
}

/// Turns what prediction left back into symbols. Each one waits for the one before it, so some
/// channels go side by side.
void undo_predictions(Levels& levels) {
  constexpr std::size_t together = 8;
  std::array<std::size_t, together> channels;
  std::size_t count = 0;
  const auto undo = [&] {
    std::array<int, together> quarters = {};
    std::array<std::int8_t*, together> rows;
    std::array<std::int8_t, together> before = {};
    // What is missing from the last round is done once more in a row that nobody reads.
    std::vector<std::int8_t> spare(count < together ? levels.tokens : 0);
    for (std::size_t i = 0; i < together; ++i) {
      rows[i] = i < count ? levels.row(channels[i]) : spare.data();
      if (i < count) quarters[i] = levels.modes[channels[i]] >> quarters_shift;
    }
    for (std::size_t t = 0; t < levels.tokens; ++t) {
      for (std::size_t i = 0; i < together; ++i) {
        before[i] = static_cast<std::int8_t>(rows[i][t] + ((quarters[i] * before[i] + 2) >> 2));
        rows[i][t] = before[i];
      }
    }
    count = 0;
  };
  for (std::size_t i = 0; i < levels.modes.size(); ++i) {
    if (levels.modes[i] >> quarters_shift == 0) continue;
    channels[count++] = i;
    if (count == together) undo();
  }
  if (count > 0) undo();
}

void join_page(const PagePlan& plan, const LevelLayout& layout, Levels& levels, MutableBytes page) {
  const std::uint32_t head_dim = plan.shape.head_dim;
  const std::size_t tile_values = std::size_t{lanes} * head_dim;
  std::vector<float> k(tile_values);
  std::vector<float> v(tile_values);
  std::vector<float> key_steps(tile_values);
  alignas(64) std::array<float, lanes> value_steps;
  const std::byte* kept = levels.kept.data();
  for (std::uint32_t head = 0; head < plan.shape.kv_heads; ++head) {
    const std::size_t channel = std::size_t{head} * head_dim;
    for (std::uint32_t d = 0; d < head_dim; ++d) {
      std::fill_n(&key_steps[std::size_t{d} * lanes], lanes,
                  scale_of[levels.key_scales[channel + d]]);
    }
    const kernel::PageHead target = page_head(plan.shape, page.data(), head);
    for (std::uint32_t tile = 0; tile < layout.tiles; ++tile) {
      if (tile < layout.first_tile) {
        kernels().restore_tile_8(kept, head_dim, k.data());
        kept += kernel::tile_bytes_8(head_dim);
        kernels().restore_tile_8(kept, head_dim, v.data());
        kept += kernel::tile_bytes_8(head_dim);
      } else {
        const std::size_t token = std::size_t{tile - layout.first_tile} * tile_tokens;
        kernels().restore_levels(levels.row(channel) + token, layout.tokens,
                                 {key_steps.data(), lanes}, head_dim, k.data());
        kernels().shift_tile(k.data(), &levels.means[channel], 1.0F, head_dim);
        const std::int8_t* scales = levels.row(layout.first_channel(value_scales) + head) + token;
        for (std::uint32_t i = 0; i < lanes; ++i) {
          value_steps[i] = scale_of[static_cast<std::uint8_t>(scales[i] * value_scale_stride)];
        }
        kernels().restore_levels(levels.row(layout.first_channel(values) + channel) + token,
                                 layout.tokens, {value_steps.data(), 0}, head_dim, v.data());
      }
      kernels().store_tile(k.data(), v.data(), tile, target);
    }
  }
  clear_tokens(plan.shape, plan.tokens_held, page);
}

class LevelCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::q4_delta; }
  bool is_lossless() const override { return false; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return 1 + q8_codec().encoded_bytes_max(shape);
  }

  std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const override {
    HEADRACE_CHECK(out.size() >= encoded_bytes_max(plan.shape), "room for a page");
    if (const std::uint64_t coded = encode_levels(plan, page, out); coded > 0) return coded;
    out[0] = stored_raw;
    return 1 + q8_codec().encode(plan, page, out.subspan(1));
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    if (!encoded.empty() && encoded[0] == stored_raw) {
      return q8_codec().decode(plan, encoded.subspan(1), page);
    }
    const LevelLayout layout(plan);
    Levels levels(layout);
    if (encoded.empty() || encoded[0] != stored_coded || layout.tokens == 0 ||
        !read_levels(layout, encoded.subspan(1), levels)) {
      return Error{ErrorCode::corrupt, "a damaged page of levels"};
    }
    join_page(plan, layout, levels, page);
    return {};
  }

 private:
  /// 0: q8 is the better choice, for a page of a few tokens or of values that are not finite.
  static std::uint64_t encode_levels(const PagePlan& plan, Bytes page, MutableBytes out) {
    const LevelLayout layout(plan);
    if (layout.tokens == 0) return 0;
    Levels levels(layout);
    if (!cut_page(plan, layout, page, levels)) return 0;
    choose_modes(layout, levels);
    const QuantizedLayout other(CodecId::q8, plan);
    MutableBytes rest = out.first(std::min<std::size_t>(out.size(), 1 + other.bytes()));
    if (rest.size() < 1 + layout.front_bytes() + layout.channels) return 0;
    const auto put = [&](Bytes bytes) {
      std::ranges::copy(bytes, rest.begin());
      rest = rest.subspan(bytes.size());
    };
    put(Bytes(&stored_coded, 1));
    put(levels.kept);
    put(std::as_bytes(std::span(levels.means)));
    put(std::as_bytes(std::span(levels.key_scales)));
    put(std::as_bytes(std::span(levels.modes)));
    const std::size_t coded = write_channels(levels.plan(), levels.bytes(), rest);
    return coded == 0 ? 0 : 1 + layout.front_bytes() + layout.channels + coded;
  }

  static bool read_levels(const LevelLayout& layout, Bytes encoded, Levels& levels) {
    if (encoded.size() < layout.front_bytes() + layout.channels) return false;
    const auto take = [&](auto& vector) {
      const MutableBytes bytes = std::as_writable_bytes(std::span(vector));
      std::ranges::copy(encoded.first(bytes.size()), bytes.begin());
      encoded = encoded.subspan(bytes.size());
    };
    take(levels.kept);
    take(levels.means);
    take(levels.key_scales);
    take(levels.modes);
    for (std::uint32_t kind = 0; kind < kinds; ++kind) {
      for (std::size_t i = layout.first_channel(kind); i < layout.first_channel(kind + 1); ++i) {
        levels.tables[i] = levels.modes[i] & ((1U << quarters_shift) - 1);
        if (levels.tables[i] < first_table[kind] || levels.tables[i] >= first_table[kind + 1] ||
            levels.modes[i] >> quarters_shift > quarters_max) {
          return false;
        }
      }
    }
    if (!read_channels(levels.plan(), encoded, levels.bytes())) return false;
    undo_predictions(levels);
    return true;
  }
};

}  // namespace

const Codec& q4_delta_codec() {
  static const LevelCodec codec;
  return codec;
}

}  // namespace headrace
