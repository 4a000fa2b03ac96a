// Architecture `gemma3`: Gemma 3, its text part. Norms around attention and feed-forward, a gated
// GELU, and layers that read a window of the newest tokens only, by default five of six.
#include <cmath>

#include "model/architecture.h"

namespace headrace {
namespace {

constexpr std::uint32_t default_pattern = 6;
/// The 27B model, which alone scales its scores by the width per query head.
constexpr std::uint32_t layers_of_27b = 62;

/// Which layers have a window: a flag per layer, or every so many layers one has none.
Result<std::vector<std::uint32_t>> read_windows(const GgufFile& file, std::uint32_t layers,
                                                std::uint32_t window) {
  const std::string key = "gemma3.attention.sliding_window_pattern";
  std::vector<std::uint64_t> flags;
  if (file.is_array(key)) {
    HEADRACE_TRY_ASSIGN(flags, file.get_unsigned_array(key));
    if (flags.size() < layers) {
      return Error{ErrorCode::corrupt, "'" + file.path() + "': '" + key + "' has " +
                                           std::to_string(flags.size()) + " entries for " +
                                           std::to_string(layers) + " layers"};
    }
  } else {
    HEADRACE_TRY_ASSIGN(const auto given, file.get_unsigned(key));
    const std::uint64_t step = given.value_or(default_pattern);
    for (std::uint64_t layer = 0; layer < layers; ++layer)
      flags.push_back(step == 0 || layer % step < step - 1 ? 1 : 0);
  }
  std::vector<std::uint32_t> windows(layers);
  for (std::size_t layer = 0; layer < layers; ++layer)
    windows[layer] = flags[layer] != 0 ? window : 0;
  return windows;
}

Result<void> read_more(const GgufFile& file, ModelShape& shape) {
  shape.embedding_scale = std::sqrt(static_cast<float>(shape.embedding));
  if (shape.layers == layers_of_27b && shape.query_heads > 0) {
    const std::uint32_t width = shape.embedding / shape.query_heads;
    shape.attention_scale = 1.0 / std::sqrt(static_cast<double>(width));
  }
  HEADRACE_TRY_ASSIGN(const auto cap, file.get_float("gemma3.final_logit_softcapping"));
  shape.logit_cap = static_cast<float>(cap.value_or(0.0));
  const std::string window_key = "gemma3.attention.sliding_window";
  if (!file.has_key(window_key)) return {};
  HEADRACE_TRY_ASSIGN(const std::uint32_t window, file.require_u32(window_key));
  if (window == 0) return {};
  HEADRACE_TRY_ASSIGN(shape.windows, read_windows(file, shape.layers, window));
  return {};
}

}  // namespace

const Architecture gemma3_architecture = {.name = "gemma3",
                                          .rope_pairs = RopePairs::halves,
                                          .activation = Activation::gelu,
                                          .partial_rotation = true,
                                          .head_norms = true,
                                          .post_norms = true,
                                          .read_more = read_more};

}  // namespace headrace
