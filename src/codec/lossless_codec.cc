// Lossless: the upper bytes of the values, which repeat, are entropy-coded; the lower ones, which
// do not, are kept. Format: docs/formats/codecs.md.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "codec/codecs.h"
#include "codec/group_layout.h"
#include "codec/held_tiles.h"
#include "codec/rans.h"
#include "kernel/kernels.h"

namespace headrace {
namespace {

using kernel::HalfForm;
using kernel::kernels;

/// Values of the largest tile: 16 tokens of 1,024 dims.
constexpr std::size_t tile_values_max = 16'384;

/// Two streams: K and V.
constexpr std::size_t streams = 2;
constexpr std::size_t states_bytes = kernel::rans_lanes * sizeof(std::uint32_t);

HalfForm form_of(KvType type, bool is_key) {
  if (type == KvType::f16) return HalfForm::as_is;
  return type == KvType::i16 && is_key ? HalfForm::lines_less_reference : HalfForm::sign_last;
}

/// The 16-bit values of a page in the order in which they are coded: by kv head, then by tile. Of
/// f32 they are the upper halves of the values; the lower halves are kept as they are.
class Halves {
 public:
  explicit Halves(const PagePlan& plan)
      : shape_(plan.shape), tiles_(plan.shape, plan.tokens_held) {}

  const HeldTiles& tiles() const { return tiles_; }
  std::size_t parts() const { return std::size_t{shape_.kv_heads} * tiles_.tiles(); }
  /// Values of one stream.
  std::size_t count() const { return parts() * tiles_.tile_values(); }
  bool has_references() const { return shape_.type == KvType::i16; }
  bool is_wide() const { return shape_.type == KvType::f32; }
  std::size_t reference_count() const {
    return has_references() ? std::size_t{shape_.kv_heads} * shape_.head_dim : 0;
  }
  std::size_t scale_bytes() const { return shape_.kv_heads * tiles_.scale_bytes(); }
  /// Bytes that are not entropy-coded: references, scales, lower bytes, lower halves.
  std::size_t plain_bytes() const {
    return 2 * reference_count() + scale_bytes() + streams * count() * (is_wide() ? 3 : 1);
  }

  std::size_t offset(bool is_key, std::size_t part) const {
    const auto kv_head = static_cast<std::uint32_t>(part / tiles_.tiles());
    const auto tile = static_cast<std::uint32_t>(part % tiles_.tiles());
    return is_key ? tiles_.key_offset(kv_head, tile) : tiles_.value_offset(kv_head, tile);
  }
  const std::uint16_t* references(std::span<const std::uint16_t> all, std::size_t part) const {
    return has_references() ? all.data() + part / tiles_.tiles() * shape_.head_dim : nullptr;
  }

  void split(Bytes page, bool is_key, std::size_t part, std::span<const std::uint16_t> references,
             std::uint8_t* upper, std::uint8_t* lower, std::byte* lower_half) const {
    const std::size_t values = tiles_.tile_values();
    const std::byte* at = page.data() + offset(is_key, part);
    std::array<std::uint16_t, tile_values_max> halves;
    const auto* source = reinterpret_cast<const std::uint16_t*>(at);
    if (is_wide()) {
      for (std::size_t i = 0; i < values; ++i) {
        halves[i] = source[2 * i + 1];
        std::memcpy(lower_half + 2 * i, source + 2 * i, 2);
      }
      source = halves.data();
    }
    kernels().split_halves(form_of(shape_.type, is_key), source, values,
                           this->references(references, part), upper, lower);
  }

  void join(MutableBytes page, bool is_key, std::size_t part,
            std::span<const std::uint16_t> references, const std::uint8_t* upper,
            const std::uint8_t* lower, const std::byte* lower_half) const {
    const std::size_t values = tiles_.tile_values();
    auto* target = reinterpret_cast<std::uint16_t*>(page.data() + offset(is_key, part));
    std::array<std::uint16_t, tile_values_max> halves;
    kernels().join_halves(form_of(shape_.type, is_key), upper, lower, values,
                          this->references(references, part), is_wide() ? halves.data() : target);
    if (!is_wide()) return;
    for (std::size_t i = 0; i < values; ++i) {
      std::memcpy(target + 2 * i, lower_half + 2 * i, 2);
      target[2 * i + 1] = halves[i];
    }
  }

  /// The mean of each dim of i16 keys over the tokens of the page.
  std::vector<std::uint16_t> means(Bytes page, std::uint32_t tokens_held) const {
    std::vector<std::int32_t> sums(reference_count());
    for (std::size_t part = 0; part < parts() && has_references(); ++part) {
      const auto* line = reinterpret_cast<const std::int16_t*>(page.data() + offset(true, part));
      const auto* const end = line + tiles_.tile_values();
      std::int32_t* const dims = sums.data() + part / tiles_.tiles() * shape_.head_dim;
      constexpr std::size_t line_values = line_tokens * line_dims;
      for (std::size_t dim = 0; line != end; line += line_values) {
        for (std::size_t i = 0; i < line_values; ++i) dims[dim + i % line_dims] += line[i];
        dim = (dim + line_dims) % shape_.head_dim;
      }
    }
    std::vector<std::uint16_t> means(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      means[i] = static_cast<std::uint16_t>(sums[i] / static_cast<std::int32_t>(tokens_held));
    }
    return means;
  }

 private:
  PageShape shape_;
  HeldTiles tiles_;
};

/// The payload of a coded page, part by part in the order of the format.
struct Layout {
  std::size_t references = 1;
  std::size_t scales = 0;
  std::size_t lower[streams] = {};
  std::size_t lower_halves[streams] = {};
  std::size_t tables = 0;  ///< from here on sizes depend on the values

  explicit Layout(const Halves& halves) {
    scales = references + 2 * halves.reference_count();
    std::size_t at = scales + halves.scale_bytes();
    for (std::size_t i = 0; i < streams; ++i, at += halves.count()) lower[i] = at;
    for (std::size_t i = 0; i < streams && halves.is_wide(); ++i, at += 2 * halves.count()) {
      lower_halves[i] = at;
    }
    tables = at;
  }
};

class LosslessCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::lossless; }
  bool is_lossless() const override { return true; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return 1 + shape.bytes();
  }

  std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const override {
    HEADRACE_CHECK(out.size() >= encoded_bytes_max(plan.shape), "room for a page that stays raw");
    const std::uint64_t raw_bytes = grouped_bytes(plan.shape, plan.tokens_held);
    const std::uint64_t coded =
        plan.shape.type == KvType::q8 ? 0 : encode_coded(plan, page, out.first(1 + raw_bytes));
    if (coded > 0 && coded <= raw_bytes - raw_bytes / 8) return coded;
    out[0] = stored_raw;
    return 1 + raw_codec().encode(plan, page, out.subspan(1));
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    if (!encoded.empty() && encoded[0] == stored_raw) {
      return raw_codec().decode(plan, encoded.subspan(1), page);
    }
    if (encoded.empty() || encoded[0] != stored_coded || plan.shape.type == KvType::q8 ||
        !decode_coded(plan, encoded, page)) {
      return Error{ErrorCode::corrupt, "a damaged lossless page"};
    }
    return {};
  }

 private:
  /// 0: does not fit.
  static std::uint64_t encode_coded(const PagePlan& plan, Bytes page, MutableBytes out);
  static bool decode_coded(const PagePlan& plan, Bytes encoded, MutableBytes page);
};

std::uint64_t LosslessCodec::encode_coded(const PagePlan& plan, Bytes page, MutableBytes out) {
  const Halves halves(plan);
  const Layout layout(halves);
  const std::size_t values = halves.tiles().tile_values();
  if (layout.tables >= out.size()) return 0;
  out[0] = stored_coded;
  const std::vector<std::uint16_t> references = halves.means(page, plan.tokens_held);
  // Only i16 keys have some.
  std::ranges::copy(std::as_bytes(std::span(references)), out.subspan(layout.references).begin());
  for (std::uint32_t head = 0; head < plan.shape.kv_heads; ++head) {
    const std::size_t bytes = halves.tiles().scale_bytes();
    std::memcpy(&out[layout.scales + head * bytes], page.data() + halves.tiles().scale_offset(head),
                bytes);
  }

  std::size_t at = layout.tables;
  for (std::size_t stream = 0; stream < streams; ++stream) {
    const bool is_key = stream == 0;
    std::array<std::uint8_t, tile_values_max> upper;
    auto* lower = reinterpret_cast<std::uint8_t*>(&out[layout.lower[stream]]);
    std::byte* lower_halves = halves.is_wide() ? &out[layout.lower_halves[stream]] : nullptr;
    Histogram histogram;
    const auto split = [&](std::size_t part) {
      std::byte* lower_half = lower_halves == nullptr ? nullptr : lower_halves + 2 * part * values;
      halves.split(page, is_key, part, references, upper.data(), lower + part * values, lower_half);
      return std::span<const std::uint8_t>(upper).first(values);
    };
    for (std::size_t part = 0; part < halves.parts(); ++part) histogram.add(split(part));
    const RansTable table = RansTable::from_counts(histogram.counts());
    const std::size_t fixed = table.bytes() + states_bytes + sizeof(std::uint32_t);
    if (out.size() - at < fixed) return 0;
    table.write(out.subspan(at));
    const RansSteps steps(table);
    RansWriter writer(out.subspan(at + fixed));
    for (std::size_t part = halves.parts(); part > 0; --part) {
      if (!writer.prepend(steps, split(part - 1))) return 0;
    }
    const Bytes words = writer.words();
    const auto word_bytes = static_cast<std::uint32_t>(words.size());
    std::memcpy(&out[at + table.bytes()], writer.states().data(), states_bytes);
    std::memcpy(&out[at + table.bytes() + states_bytes], &word_bytes, sizeof word_bytes);
    std::memmove(out.data() + at + fixed, words.data(), words.size());
    at += fixed + words.size();
  }
  return at;
}

bool LosslessCodec::decode_coded(const PagePlan& plan, Bytes encoded, MutableBytes page) {
  const Halves halves(plan);
  const Layout layout(halves);
  const std::size_t values = halves.tiles().tile_values();
  if (encoded.size() < layout.tables) return false;
  std::ranges::fill(page, std::byte{0});
  std::vector<std::uint16_t> references(halves.reference_count());
  std::ranges::copy(encoded.subspan(layout.references, 2 * references.size()),
                    std::as_writable_bytes(std::span(references)).begin());
  for (std::uint32_t head = 0; head < plan.shape.kv_heads; ++head) {
    const std::size_t bytes = halves.tiles().scale_bytes();
    std::memcpy(page.data() + halves.tiles().scale_offset(head),
                encoded.data() + layout.scales + head * bytes, bytes);
  }

  Bytes rest = encoded.subspan(layout.tables);
  for (std::size_t stream = 0; stream < streams; ++stream) {
    const auto table = RansTable::read(rest);
    if (!table.ok() || rest.size() < states_bytes + sizeof(std::uint32_t)) return false;
    kernel::RansReader reader;
    std::uint32_t word_bytes = 0;
    std::memcpy(reader.states, rest.data(), states_bytes);
    std::memcpy(&word_bytes, rest.data() + states_bytes, sizeof word_bytes);
    rest = rest.subspan(states_bytes + sizeof word_bytes);
    if (rest.size() < word_bytes) return false;
    reader.next = rest.data();
    reader.end = rest.data() + word_bytes;
    rest = rest.subspan(word_bytes);

    std::array<std::uint32_t, kernel::rans_slots> slots;
    table->fill_slots(slots);
    std::array<std::uint8_t, tile_values_max> upper;
    const auto* lower = reinterpret_cast<const std::uint8_t*>(&encoded[layout.lower[stream]]);
    const std::byte* lower_halves =
        halves.is_wide() ? &encoded[layout.lower_halves[stream]] : nullptr;
    for (std::size_t part = 0; part < halves.parts(); ++part) {
      if (!kernels().rans_decode(reader, slots.data(), values, upper.data())) return false;
      halves.join(page, stream == 0, part, references, upper.data(), lower + part * values,
                  lower_halves == nullptr ? nullptr : lower_halves + 2 * part * values);
    }
    // A stream that was read right ends where it began.
    const auto is_start = [](std::uint32_t state) { return state == kernel::rans_state_min; };
    if (reader.next != reader.end || !std::ranges::all_of(reader.states, is_start)) return false;
  }
  return rest.empty();
}

}  // namespace

const Codec& lossless_codec() {
  static const LosslessCodec codec;
  return codec;
}

}  // namespace headrace
