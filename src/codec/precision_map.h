// A precision map: what K and V of each kv head in each layer keep of their bits. The text of one
// is docs/formats/precision_map.md; map_codec.h encodes pages by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "headrace/result.h"

namespace headrace {

/// What K or V of one head keeps. The values are part of the format of pages: never renumber.
enum class Precision : std::uint8_t {
  raw = 0,  ///< every bit of the pool
  q8 = 1,
  q4 = 2,
};

inline constexpr Precision precisions[] = {Precision::raw, Precision::q8, Precision::q4};

const char* to_string(Precision precision);

/// Bits a value in pages of many tokens; of raw, those of a pool with 16.
constexpr double bits_of(Precision precision) {
  return precision == Precision::raw ? 16.0 : precision == Precision::q8 ? 8.5 : 4.3;
}

struct HeadPrecision {
  Precision key = Precision::raw;
  Precision value = Precision::raw;
  bool operator==(const HeadPrecision&) const = default;
};

struct PrecisionMap {
  std::string model;  ///< Engine::model_digest() of the model that it is for
  std::uint32_t kv_heads = 0;
  std::vector<HeadPrecision> heads;  ///< [layer][kv head]

  std::size_t layers() const { return kv_heads == 0 ? 0 : heads.size() / kv_heads; }
  HeadPrecision head(std::uint32_t layer, std::uint32_t kv_head) const {
    return heads[std::size_t{layer} * kv_heads + kv_head];
  }
  /// Bits a value over all layers and heads.
  double mean_bits() const;
  /// Equal for equal maps, whatever comments their texts have.
  Digest128 digest() const;
  bool operator==(const PrecisionMap&) const = default;
};

std::string to_text(const PrecisionMap& map);

/// Errors: invalid_argument, with the line and what it should be.
Result<PrecisionMap> parse_precision_map(std::string_view text);

/// The model that a map must be for.
struct MappedModel {
  std::string digest;  ///< Engine::model_digest()
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
};

/// Errors: invalid_argument (the map is for another one), with what to do.
Result<void> check_precision_map(const PrecisionMap& map, const MappedModel& model);

}  // namespace headrace
