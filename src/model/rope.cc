// Rotary position embedding (Su et al. 2021) and its scalings, folded into one frequency per pair
// of dims:
//   linear   f / factor (Chen et al. 2023)
//   yarn     a ramp between f and f / factor over the pairs, and a magnitude (Peng et al. 2023)
//   factors  a divisor per pair in the tensor rope_freqs.weight (Llama 3), or in one of two tensors
//            for short and for long contexts (LongRoPE, Ding et al. 2024)
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/architecture.h"

namespace headrace {
namespace {

/// The pair that makes `rotations` turns within the trained context.
double pair_with_rotations(double rotations, std::uint32_t dims, double context, double base) {
  return dims * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
}

struct Scaling {
  std::string type = "linear";
  double factor = 1.0;
  double magnitude = 1.0;
  double original_context = 0.0;
};

Result<double> float_or(const GgufFile& file, const std::string& key, double otherwise) {
  HEADRACE_TRY_ASSIGN(const std::optional<double> value, file.get_float(key));
  return value.value_or(otherwise);
}

Result<Scaling> read_scaling(const GgufFile& file, const std::string& prefix,
                             std::uint32_t trained_context) {
  Scaling scaling;
  HEADRACE_TRY_ASSIGN(const std::optional<std::string> type,
                      file.get_string(prefix + "rope.scaling.type"));
  scaling.type = type.value_or("linear");
  HEADRACE_TRY_ASSIGN(const double old_factor, float_or(file, prefix + "rope.scale_linear", 0.0));
  HEADRACE_TRY_ASSIGN(scaling.factor, float_or(file, prefix + "rope.scaling.factor", old_factor));
  if (scaling.factor == 0.0 || scaling.type == "none") scaling.factor = 1.0;
  HEADRACE_TRY_ASSIGN(scaling.magnitude, float_or(file, prefix + "rope.scaling.attn_factor", 1.0));
  HEADRACE_TRY_ASSIGN(const std::optional<std::uint64_t> context,
                      file.get_unsigned(prefix + "rope.scaling.original_context_length"));
  scaling.original_context = static_cast<double>(context.value_or(trained_context));
  if (scaling.type != "none" && scaling.type != "linear" && scaling.type != "yarn" &&
      scaling.type != "longrope") {
    return Error{ErrorCode::unsupported,
                 "'" + file.path() + "': rope scaling '" + scaling.type + "' cannot be run"};
  }
  if (!(scaling.factor > 0.0) || !(scaling.original_context > 0.0)) {
    return Error{ErrorCode::corrupt,
                 "'" + file.path() + "': its rope scaling has no positive factor or context"};
  }
  return scaling;
}

/// A divisor per pair; null if there are none. Contexts longer than the original one have factors
/// of their own, from the first token on.
Result<const float*> find_factors(const GgufFile& file, const Scaling& scaling, std::uint32_t dims,
                                  std::uint32_t context) {
  HEADRACE_TRY_ASSIGN(const float* factors,
                      bind_vector(file, "rope_freqs.weight", dims / 2, false));
  if (factors != nullptr) return factors;
  const bool is_long = context > scaling.original_context;
  return bind_vector(file, is_long ? "rope_factors_long.weight" : "rope_factors_short.weight",
                     dims / 2, scaling.type == "longrope");
}

}  // namespace

Result<RopeSpec> read_rope(const GgufFile& file, const std::string& prefix, std::uint32_t dims,
                           std::uint32_t trained_context, std::uint32_t context) {
  HEADRACE_TRY_ASSIGN(const double base, float_or(file, prefix + "rope.freq_base", 10000.0));
  HEADRACE_TRY_ASSIGN(const Scaling scaling, read_scaling(file, prefix, trained_context));
  HEADRACE_TRY_ASSIGN(const float* factors, find_factors(file, scaling, dims, context));
  if (!(base > 1.0))
    return Error{ErrorCode::corrupt, "'" + file.path() + "': its rope base is not above 1"};

  constexpr double beta_fast = 32.0;
  constexpr double beta_slow = 1.0;
  const double low = std::max(
      0.0, std::floor(pair_with_rotations(beta_fast, dims, scaling.original_context, base)));
  const double high = std::min(
      dims - 1.0, std::ceil(pair_with_rotations(beta_slow, dims, scaling.original_context, base)));

  RopeSpec rope;
  rope.magnitude = static_cast<float>(scaling.magnitude);
  if (scaling.type == "yarn" && scaling.factor > 1.0) {
    rope.magnitude = static_cast<float>(scaling.magnitude * (1.0 + 0.1 * std::log(scaling.factor)));
  }
  for (std::uint32_t i = 0; i < dims / 2; ++i) {
    const double plain = std::pow(base, -2.0 * i / dims) /
                         (factors != nullptr ? static_cast<double>(factors[i]) : 1.0);
    double keep = 0.0;  // share of the unscaled frequency
    if (scaling.type == "yarn")
      keep = 1.0 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
    rope.frequencies.push_back(plain / scaling.factor * (1.0 - keep) + plain * keep);
  }
  return rope;
}

Result<RopeSpec> read_window_rope(const GgufFile& file, const std::string& prefix,
                                  std::uint32_t dims) {
  HEADRACE_TRY_ASSIGN(const double base, float_or(file, prefix + "rope.freq_base_swa", 10000.0));
  HEADRACE_TRY_ASSIGN(const Scaling scaling, read_scaling(file, prefix, 1));
  if (!(base > 1.0))
    return Error{ErrorCode::corrupt, "'" + file.path() + "': its rope base is not above 1"};
  if (scaling.type == "yarn") {
    return Error{ErrorCode::unsupported, "'" + file.path() +
                                             "': rope scaling 'yarn' of a model with windows "
                                             "cannot be run"};
  }
  RopeSpec rope;
  rope.magnitude = static_cast<float>(scaling.magnitude);
  for (std::uint32_t i = 0; i < dims / 2; ++i)
    rope.frequencies.push_back(std::pow(base, -2.0 * i / dims));
  return rope;
}

}  // namespace headrace
