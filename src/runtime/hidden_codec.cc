#include "runtime/hidden_codec.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "codec/group_layout.h"

namespace headrace {
namespace {

CodecId id_of(HiddenType type) {
  switch (type) {
    case HiddenType::f32:
      return CodecId::hidden_f32;
    case HiddenType::f16:
      return CodecId::hidden_f16;
    case HiddenType::q8:
      return CodecId::hidden_q8;
  }
  return CodecId::hidden_f32;
}

class HiddenCodec final : public Codec {
 public:
  explicit HiddenCodec(KvProjector& projector)
      : projector_(projector), row_bytes_(projector.row_bytes()) {}

  CodecId id() const override { return id_of(projector_.type()); }
  std::uint32_t hidden_row_bytes() const override { return row_bytes_; }
  /// The page came from the rows as they are kept.
  bool is_lossless() const override { return true; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override {
    return std::uint64_t{shape.tokens} * row_bytes_;
  }

  std::uint64_t encode(const PagePlan& plan, Bytes rows, MutableBytes out) const override {
    HEADRACE_CHECK(rows.size() == std::uint64_t{plan.tokens_held} * row_bytes_,
                   "hidden states are encoded row by row");
    std::ranges::copy(rows, out.begin());
    return rows.size();
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    HEADRACE_TRY(check(encoded, plan.tokens_held));
    if (plan.tokens_held < plan.shape.tokens) std::ranges::fill(page, std::byte{0});
    projector_.project(plan.layer, plan.first_position, encoded, plan.shape, 0, page.data());
    return {};
  }

  std::uint64_t encoded_group_bytes(const PageShape&) const override {
    return std::uint64_t{group_tokens} * row_bytes_;
  }

  Result<void> decode_group(const PagePlan& plan, std::uint32_t group, Bytes encoded,
                            MutableBytes out) const override {
    HEADRACE_TRY(check(encoded, group_tokens));
    // A page of one tile, of which the group is a half.
    PageShape tile = plan.shape;
    tile.tokens = tile_tokens;
    projector_.project(plan.layer, plan.first_position + group * group_tokens, encoded, tile,
                       [&](Bytes page) { encode_group(tile, 0, page, out); });
    return {};
  }

 private:
  Result<void> check(Bytes encoded, std::uint32_t tokens) const {
    const std::uint64_t wanted = std::uint64_t{tokens} * row_bytes_;
    if (encoded.size() == wanted) return {};
    return Error{ErrorCode::corrupt, "the stored hidden states have " +
                                         std::to_string(encoded.size()) + " bytes instead of " +
                                         std::to_string(wanted)};
  }

  KvProjector& projector_;
  std::uint32_t row_bytes_;
};

}  // namespace

std::optional<HiddenType> parse_hidden_codec(std::string_view name) {
  for (const HiddenType type : {HiddenType::f32, HiddenType::f16, HiddenType::q8})
    if (name == to_string(id_of(type))) return type;
  return std::nullopt;
}

std::unique_ptr<Codec> new_hidden_codec(KvProjector& projector) {
  return std::make_unique<HiddenCodec>(projector);
}

}  // namespace headrace
