#include "cli/eval_mode.h"

#include <algorithm>
#include <optional>

namespace headrace {
namespace {

/// What a mode has of its own; the rest is as the command line says.
struct Part {
  const char* name;
  const char* family;
  std::optional<AttentionMode> attention = {};
  std::optional<float> recall_share = {};
  bool by_layer = false;  ///< recall with one choice for all kv heads
  std::optional<KvType> kv_type = {};
  const char* codec = nullptr;
  double codec_bits = 0;             ///< a value (docs/formats/codecs.md)
  std::uint32_t memory_divisor = 1;  ///< memory for one of so many parts of the KV
  bool when_named = false;           ///< not part of a run that names no modes
};

constexpr AttentionMode recall = AttentionMode::recall;

// What recall-N reads is 1/N of 8,192 tokens of SmolLM2-135M, about (docs/benchmarks.md).
constexpr Part parts[] = {
    {.name = exact_mode, .family = "exact"},
    {.name = "eighth", .family = "memory", .memory_divisor = 8, .when_named = true},
    {.name = "kv-f16", .family = "type", .kv_type = KvType::f16, .when_named = true},
    {.name = "kv-q8", .family = "type", .kv_type = KvType::q8},
    {.name = "lossless",
     .family = "codec",
     .codec = "lossless",
     .codec_bits = 11.15,
     .when_named = true},
    {.name = "q8", .family = "codec", .codec = "q8", .codec_bits = 8.5},
    {.name = "k8v4", .family = "codec", .codec = "k8v4", .codec_bits = 6.7},
    {.name = "q4", .family = "codec", .codec = "q4", .codec_bits = 4.9},
    {.name = "q4-delta", .family = "codec", .codec = "q4-delta", .codec_bits = 3.3},
    {.name = "recall", .family = "recall", .attention = recall},
    {.name = "recall-16", .family = "recall", .attention = recall, .recall_share = 2.4e-3F},
    {.name = "recall-layer", .family = "recall by layer", .attention = recall, .by_layer = true},
    {.name = "window", .family = "window", .attention = AttentionMode::window},
    {.name = "sparse", .family = "sparse", .attention = AttentionMode::sparse},
};

const Part* find_part(std::string_view name) {
  const auto* const part = std::find_if(std::begin(parts), std::end(parts),
                                        [&](const Part& p) { return name == p.name; });
  return part == std::end(parts) ? nullptr : part;
}

double bits_of_type(KvType type, const ModelInfo& model) {
  return 4.0 *
         static_cast<double>(key_bytes(type, model.head_dim) + value_bytes(type, model.head_dim)) /
         model.head_dim;
}

void apply(const Part& part, EvalMode& mode, const ModelInfo& model) {
  EngineOptions& options = mode.options;
  if (part.attention) {
    options.attention.mode = *part.attention;
    // As it comes for 8,192 tokens. Shorter contexts would be read exactly.
    options.attention.recall_tokens =
        std::min(options.attention.recall_tokens, options.context / 4);
    const std::uint32_t eighth = options.context / 8;
    options.attention.sparse_tokens = std::min(options.attention.sparse_tokens, eighth);
    options.attention.window_tokens =
        std::min(options.attention.window_tokens,
                 eighth - std::min(eighth - 1, options.attention.recall_first));
  }
  if (part.by_layer) {
    options.attention.recall_by_layer = true;
    options.attention.recall_group = 8;
  }
  if (part.recall_share) options.attention.recall_share = *part.recall_share;
  if (part.kv_type) options.kv.type = *part.kv_type;
  if (part.codec != nullptr) options.kv.codec = part.codec;
  if (part.memory_divisor > 1) {
    options.kv.memory_bytes =
        model.kv_bytes(options.kv.type, options.context) / part.memory_divisor;
  }
  if (part.kv_type) mode.bits_a_value = bits_of_type(*part.kv_type, model);
  if (part.codec != nullptr) mode.bits_a_value = part.codec_bits;
}

}  // namespace

std::vector<std::string> eval_mode_names() {
  std::vector<std::string> names;
  for (const Part& part : parts) names.emplace_back(part.name);
  return names;
}

std::vector<std::string> default_eval_mode_names() {
  std::vector<std::string> names;
  for (const Part& part : parts) {
    if (!part.when_named) names.emplace_back(part.name);
  }
  return names;
}

Result<EvalMode> make_eval_mode(std::string_view name, const EngineOptions& options,
                                const ModelInfo& model) {
  EvalMode mode = {.name = std::string(name),
                   .family = {},
                   .options = options,
                   .bits_a_value = bits_of_type(options.kv.type, model)};
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('+', start), name.size());
    const Part* part = find_part(name.substr(start, end - start));
    if (part == nullptr) {
      std::string names;
      for (const Part& known : parts) names.append(names.empty() ? "" : ", ").append(known.name);
      return Error{ErrorCode::invalid_argument, "there is no mode '" + mode.name + "'; there are " +
                                                    names + ", and such as recall+q4"};
    }
    apply(*part, mode, model);
    mode.family += (mode.family.empty() ? "" : "+") + std::string(part->family);
    start = end + 1;
  }
  return mode;
}

}  // namespace headrace
