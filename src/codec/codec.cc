#include "codec/codec.h"

#include <algorithm>
#include <cstring>

#include "codec/codecs.h"
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

  std::uint64_t encoded_group_bytes(const PageShape& shape) const override {
    return group_bytes(shape);
  }

  Result<void> decode_group(const PagePlan&, std::uint32_t, Bytes encoded,
                            MutableBytes out) const override {
    std::ranges::copy(encoded, out.begin());
    return {};
  }
};

struct NamedCodec {
  const char* name;
  const Codec& (*get)();
};

constexpr NamedCodec codecs[] = {
    {"raw", raw_codec},
    {"lossless", lossless_codec},
    {"q8", q8_codec},
    {"k8v4", k8v4_codec},
    {"q4", q4_codec},
    {"q8-delta", q8_delta_codec},
    {"k8v4-delta", k8v4_delta_codec},
    {"q4-delta", q4_delta_codec},
};

}  // namespace

Result<void> Codec::decode_group(const PagePlan&, std::uint32_t, Bytes, MutableBytes) const {
  return Error{ErrorCode::unsupported, "pages of this codec have no groups of tokens"};
}

const Codec& exact_codec(const Codec& codec) {
  if (codec.hidden_row_bytes() > 0) return raw_codec();
  return codec.is_lossless() ? *find_codec(codec.id()) : lossless_codec();
}

const Codec& raw_codec() {
  static const RawCodec codec;
  return codec;
}

const Codec* find_codec(CodecId id) {
  for (const NamedCodec& codec : codecs) {
    if (codec.get().id() == id) return &codec.get();
  }
  if (id == CodecId::map) return &any_map_codec();
  return nullptr;
}

Result<const Codec*> find_codec(std::string_view name) {
  for (const NamedCodec& codec : codecs) {
    if (codec.name == name) return &codec.get();
  }
  return Error{ErrorCode::invalid_argument, "there is no codec '" + std::string(name) +
                                                "'; there are " + codec_names() +
                                                ", and for --kv-codec hidden-f32, hidden-f16, "
                                                "hidden-q8 and map:FILE"};
}

bool makes_smaller(const Codec& codec, const PageShape& shape) {
  if (const std::uint64_t row = codec.hidden_row_bytes(); row > 0)
    return row * shape.tokens < shape.bytes();
  switch (codec.id()) {
    case CodecId::raw:
      return false;
    case CodecId::lossless:
    case CodecId::q8:
    case CodecId::q8_delta:
      return shape.type != KvType::q8;
    default:
      return true;
  }
}

const char* to_string(CodecId id) {
  for (const NamedCodec& codec : codecs) {
    if (codec.get().id() == id) return codec.name;
  }
  switch (id) {
    case CodecId::map:
      return "map";
    case CodecId::hidden_f32:
      return "hidden-f32";
    case CodecId::hidden_f16:
      return "hidden-f16";
    case CodecId::hidden_q8:
      return "hidden-q8";
    default:
      return "?";
  }
}

std::string codec_names() {
  std::string names;
  for (const NamedCodec& codec : codecs)
    names += (names.empty() ? "" : ", ") + std::string(codec.name);
  return names;
}

}  // namespace headrace
