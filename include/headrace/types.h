// Small types that the public interface shares with every layer.
#pragma once

#include <cstdint>

namespace headrace {

/// Index into the model's vocabulary. Never negative for a token that exists.
using TokenId = std::int32_t;

/// How the keys and values of a token are kept in the pool. The numbers are part of file formats:
/// never renumber.
enum class KvType : std::uint8_t {
  f32 = 0,   ///< 4 bytes a value; the reference
  f16 = 1,   ///< 2 bytes a value
  bf16 = 2,  ///< 2 bytes a value, fewer digits: the fastest where the machine multiplies bf16
  q8 = 3,    ///< 8 bits a value and an f16 scale per 32 of them; head dims in multiples of 32
  i16 = 4,   ///< keys as 13-bit integers in 2 bytes and a scale per token, values as bf16: as fast
             ///< as bf16 and nearly as exact as f16
};

/// Most tokens of a block, and so of a page.
inline constexpr std::uint32_t tokens_per_block_max = 4096;

inline constexpr KvType kv_types[] = {KvType::f32, KvType::f16, KvType::i16, KvType::bf16,
                                      KvType::q8};

/// Bytes of the value of one token in one head.
constexpr std::uint64_t value_bytes(KvType type, std::uint32_t head_dim) {
  switch (type) {
    case KvType::f32:
      return std::uint64_t{head_dim} * 4;
    case KvType::f16:
    case KvType::bf16:
    case KvType::i16:
      return std::uint64_t{head_dim} * 2;
    case KvType::q8:
      return std::uint64_t{head_dim} / 32 * 34;
  }
  return 0;
}
/// Bytes of the key of one token in one head.
constexpr std::uint64_t key_bytes(KvType type, std::uint32_t head_dim) {
  return value_bytes(type, head_dim) + (type == KvType::i16 ? 2 : 0);
}

/// The lower-case name of a type, as the command line takes it.
constexpr const char* to_string(KvType type) {
  switch (type) {
    case KvType::f32:
      return "f32";
    case KvType::f16:
      return "f16";
    case KvType::bf16:
      return "bf16";
    case KvType::q8:
      return "q8";
    case KvType::i16:
      return "i16";
  }
  return "?";
}

}  // namespace headrace
