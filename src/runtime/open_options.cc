#include "runtime/open_options.h"

#include <algorithm>

#include "codec/codec.h"
#include "model/window_choice.h"
#include "page/shape.h"
#include "policy/cache_policy.h"
#include "policy/prefetch_policy.h"

namespace headrace {
namespace {

constexpr std::uint32_t threads_most = 256;
constexpr std::uint32_t chunk_tokens_most = 8192;
constexpr std::uint32_t sequences_most = 1024;

Error out_of_range(const std::string& option, std::uint64_t value, const std::string& range) {
  return {ErrorCode::invalid_argument,
          option + " " + std::to_string(value) + " cannot be used; give " + range};
}

Result<void> check_recall(const AttentionOptions& attention) {
  if (attention.recall_group != 4 && attention.recall_group != 8 && attention.recall_group != 16)
    return out_of_range("--recall-group", attention.recall_group, "4, 8 or 16");
  if (!(attention.recall_mass > 0 && attention.recall_mass <= 1)) {
    return Error{ErrorCode::invalid_argument,
                 "--recall-mass is a share of the attention: give more than 0, and 1 at most"};
  }
  if (!(attention.recall_share >= 0 && attention.recall_share < 1)) {
    return Error{ErrorCode::invalid_argument,
                 "--recall-share is a share of the attention: give 0 or more, and less than 1"};
  }
  constexpr std::uint32_t load_tokens_least = 8;
  if (attention.recall_load_tokens > 0 && attention.recall_load_tokens < load_tokens_least) {
    return out_of_range("--recall-load-tokens", attention.recall_load_tokens,
                        "0 for no limit, or at least 8, which are loaded together");
  }
  if (attention.recall_load_tokens > 0 && attention.certify) {
    return Error{ErrorCode::invalid_argument,
                 "--certify cannot tell what waits for a later step because of "
                 "--recall-load-tokens; leave one of them out"};
  }
  const std::uint64_t least = std::uint64_t{attention.recall_first} + attention.recall_newest + 16;
  if (attention.recall_tokens < least) {
    return out_of_range(
        "--recall-tokens", attention.recall_tokens,
        "at least " + std::to_string(least) + ": the first and the newest tokens are always read");
  }
  return {};
}

Result<void> check_window(const AttentionOptions& attention) {
  if (attention.window_tokens == 0) {
    return Error{ErrorCode::invalid_argument,
                 "--window-tokens 0 cannot be used; give 1 or more: a token always reads itself"};
  }
  return {};
}

Result<void> check_sparse(const AttentionOptions& attention) {
  for (const auto& [option, part] : {std::pair("--sparse-sample", attention.sparse_sample),
                                     std::pair("--sparse-heavy", attention.sparse_heavy)}) {
    if (!(part >= 0 && part < 1)) {
      return Error{
          ErrorCode::invalid_argument,
          std::string(option) + " is a part of --sparse-tokens: give 0 or more, and less than 1"};
    }
  }
  if (!(attention.sparse_sample + attention.sparse_heavy < 1)) {
    return Error{ErrorCode::invalid_argument,
                 "--sparse-sample and --sparse-heavy together leave nothing of --sparse-tokens for "
                 "the newest tokens; give parts with a sum below 1"};
  }
  const float newest = static_cast<float>(attention.sparse_tokens) *
                       (1 - attention.sparse_sample - attention.sparse_heavy);
  constexpr std::uint32_t newest_least = 16;
  if (newest < static_cast<float>(attention.recall_first + newest_least)) {
    return out_of_range("--sparse-tokens", attention.sparse_tokens,
                        "more, or less of it to --sparse-sample and --sparse-heavy: " +
                            std::to_string(attention.recall_first + newest_least) +
                            " are the first and the newest tokens at least");
  }
  return {};
}

/// No token sees another one over a longer distance than the model was trained for.
Result<void> check_positions(const EngineOptions& options, std::uint32_t trained) {
  const AttentionOptions& attention = options.attention;
  const bool is_packed = packs_positions(attention);
  if (is_packed && attention.certify) {
    return Error{ErrorCode::invalid_argument,
                 "--certify compares with all tokens at their true positions, which "
                 "--window-positions packed leaves; leave one of them out"};
  }
  if (options.context <= trained) return {};
  const std::string of_model = std::to_string(trained) + " tokens that this model was trained for";
  if (!is_packed) {
    return Error{ErrorCode::invalid_argument,
                 "--context " + std::to_string(options.context) + " is more than the " + of_model +
                     "; give at most that, or --attention window --window-positions packed"};
  }
  // The first tokens are read in groups of 4.
  constexpr std::uint32_t group = 4;
  const std::uint64_t read =
      std::uint64_t{attention.recall_first + group - 1} / group * group + attention.window_tokens;
  if (read > trained) {
    return Error{ErrorCode::invalid_argument, "--recall-first and --window-tokens make " +
                                                  std::to_string(read) + ", more than the " +
                                                  of_model + "; give less"};
  }
  return {};
}

Result<void> check_attention(const AttentionOptions& attention) {
  switch (attention.mode) {
    case AttentionMode::exact:
      break;
    case AttentionMode::recall:
      return check_recall(attention);
    case AttentionMode::window:
      return check_window(attention);
    case AttentionMode::sparse:
      return check_sparse(attention);
  }
  return {};
}

}  // namespace

Result<EngineOptions> check_options(const EngineOptions& options, const ModelInfo& model,
                                    Env& env) {
  EngineOptions checked = options;
  if (checked.context == 0) checked.context = model.trained_context;
  HEADRACE_TRY(check_positions(checked, model.trained_context));
  if (checked.threads == 0) checked.threads = static_cast<std::uint32_t>(env.hardware_threads());
  if (checked.threads > threads_most) {
    return out_of_range("--threads", checked.threads, "1 to " + std::to_string(threads_most));
  }
  if (checked.sequences == 0 || checked.sequences > sequences_most) {
    return out_of_range("the number of sequences", checked.sequences,
                        "1 to " + std::to_string(sequences_most));
  }
  if (checked.chunk_tokens == 0 || checked.chunk_tokens > chunk_tokens_most) {
    return out_of_range("--chunk", checked.chunk_tokens,
                        "1 to " + std::to_string(chunk_tokens_most));
  }
  if (checked.kv.tokens_per_block == 0 || checked.kv.tokens_per_block > tokens_per_block_max ||
      checked.kv.tokens_per_block % tile_tokens != 0) {
    return out_of_range("--block-tokens", checked.kv.tokens_per_block,
                        "a multiple of 16 from 16 to " + std::to_string(tokens_per_block_max));
  }
  if (checked.kv.type == KvType::q8 && model.head_dim % 32 != 0) {
    return Error{ErrorCode::invalid_argument,
                 "--kv-type q8 needs heads of a multiple of 32 dims, and this model's have " +
                     std::to_string(model.head_dim) + "; use bf16"};
  }
  for (const std::string& name : {checked.kv.disk_codec, checked.kv.host_codec}) {
    HEADRACE_TRY_ASSIGN(const Codec* codec, find_codec(name));
    if (!codec->is_lossless()) {
      return Error{ErrorCode::invalid_argument,
                   "codec '" + name + "' changes values, and a tier must not; use raw or lossless"};
    }
  }
  constexpr std::uint32_t host_percent_most = 90;
  if (checked.kv.host_percent > host_percent_most) {
    return out_of_range("--kv-host-percent", checked.kv.host_percent,
                        "0 to " + std::to_string(host_percent_most));
  }
  if (checked.kv.evicted != "demote" && checked.kv.evicted != "recipe") {
    return Error{ErrorCode::invalid_argument, "--kv-evicted '" + checked.kv.evicted +
                                                  "' is not known; there are demote and recipe"};
  }
  if (checked.kv.evicted == "recipe" && (checked.kv.keep_disk || checked.kv.host_percent > 0)) {
    return Error{ErrorCode::invalid_argument,
                 "--kv-evicted recipe keeps no pages: leave --kv-disk, --session and "
                 "--kv-host-percent out, or use --kv-evicted demote"};
  }
  if (checked.kv.policy.empty()) checked.kv.policy = checked.kv.keep_disk ? "cost" : "lru";
  if (!parse_cache_policy(checked.kv.policy)) {
    return Error{ErrorCode::invalid_argument,
                 "there is no policy '" + checked.kv.policy +
                     "'; there are lru, fifo, s3fifo, lrfu, cost and auto"};
  }
  if (!parse_prefetch(checked.kv.prefetch)) {
    return Error{ErrorCode::invalid_argument,
                 "there is no prefetch '" + checked.kv.prefetch +
                     "'; there are off, conservative, aggressive and learned"};
  }
  HEADRACE_TRY(check_attention(checked.attention));
  if (checked.kv.disk_directory.empty()) {
    checked.kv.disk_directory =
        env.temporary_directory() + "/headrace-" + std::to_string(env.random());
  }
  return checked;
}

}  // namespace headrace
