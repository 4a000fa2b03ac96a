// Small types that the public interface shares with every layer.
#pragma once

#include <cstdint>

namespace headrace {

/// Index into the model's vocabulary. Never negative for a token that exists.
using TokenId = std::int32_t;

/// How the keys and values of a token are kept in the pool. The values are part of file formats:
/// never renumber.
enum class KvType : std::uint8_t {
  f32 = 0,  ///< 4 bytes a value; the reference
  f16 = 1,  ///< 2 bytes a value; the default
};

/// Bytes of one key or value element.
constexpr std::uint32_t bytes_per_element(KvType type) { return type == KvType::f32 ? 4 : 2; }

/// "f32" or "f16".
constexpr const char* to_string(KvType type) { return type == KvType::f32 ? "f32" : "f16"; }

}  // namespace headrace
