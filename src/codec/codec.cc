#include "codec/codec.h"

#include <string>

#include "codec/group_layout.h"

namespace headrace {
namespace {

class RawCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::raw; }
  bool is_lossless() const override { return true; }
  std::uint64_t encoded_bytes_max(const PageShape& shape) const override { return shape.bytes(); }

  std::uint64_t encode(const PagePlan& plan, Bytes page, MutableBytes out) const override {
    return encode_groups(plan.shape, plan.tokens_held, page, out);
  }

  Result<void> decode(const PagePlan& plan, Bytes encoded, MutableBytes page) const override {
    const std::uint64_t wanted = grouped_bytes(plan.shape, plan.tokens_held);
    if (encoded.size() != wanted) {
      return Error{ErrorCode::corrupt, "the stored page has " + std::to_string(encoded.size()) +
                                           " bytes instead of " + std::to_string(wanted)};
    }
    decode_groups(plan.shape, plan.tokens_held, encoded, page);
    return {};
  }
};

}  // namespace

const Codec& raw_codec() {
  static const RawCodec codec;
  return codec;
}

const Codec* find_codec(CodecId id) { return id == CodecId::raw ? &raw_codec() : nullptr; }

}  // namespace headrace
