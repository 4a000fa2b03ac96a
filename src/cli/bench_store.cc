#include "cli/bench_store.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/bench_peers.h"
#include "cli/figures.h"
#include "cli/text_grid.h"
#include "index/block_index.h"
#include "tier/tier_limits.h"

namespace headrace {
namespace {

constexpr const char* speed_unit = "tok/s";
constexpr const char* rate_unit = "GB/s";

/// Tokens from all over the vocabulary; others for another `seed`.
std::vector<TokenId> make_text(std::uint32_t tokens, std::uint32_t vocabulary, std::uint64_t seed) {
  constexpr std::uint64_t step = 7919;
  std::vector<TokenId> text(tokens);
  for (std::uint32_t i = 0; i < tokens; ++i) {
    text[i] = static_cast<TokenId>((i + 1 + seed * 131) * step % vocabulary);
  }
  return text;
}

struct Decoding {
  double tokens_per_second = 0;
  double filled_bytes = 0;  ///< of pool pages, for one token
};

class StoreBench {
 public:
  StoreBench(const BenchSetup& setup, const StoreBenchSize& size, const ModelInfo& model,
             std::string directory, CommandContext& context)
      : setup_(setup),
        size_(size),
        model_(model),
        directory_(std::move(directory)),
        context_(context) {}

  Result<std::vector<BenchFigure>> run() {
    HEADRACE_TRY(measure_restart());
    HEADRACE_TRY(measure_limits());
    HEADRACE_TRY(measure_decoding());
    HEADRACE_TRY(measure_sharing());
    measure_lookup();
    return std::move(figures_);
  }

  Result<void> clean_up() const {
    for (const char* part : {"/keep", "/run", "/peer"}) {
      const std::string folder = directory_ + part;
      if (!context_.env.exists(folder)) continue;
      HEADRACE_TRY_ASSIGN(const auto names, context_.env.list_directory(folder));
      for (const std::string& name : names) {
        HEADRACE_TRY(context_.env.remove_file(std::string(folder).append("/").append(name)));
      }
      HEADRACE_TRY(context_.env.remove_directory(folder));
    }
    return context_.env.exists(directory_) ? context_.env.remove_directory(directory_)
                                           : Result<void>();
  }

 private:
  static Error cancelled() { return {ErrorCode::cancelled, "stopped"}; }

  void add(std::string part, std::string name, double value, const char* unit, double limit = 0) {
    figures_.push_back({std::move(part), std::move(name), value, unit, limit});
  }

  double seconds_since(std::chrono::nanoseconds start) const {
    return std::chrono::duration<double>(context_.env.now() - start).count();
  }

  double page_bytes(KvType type) const {
    return static_cast<double>(model_.kv_bytes_per_layer(type)) * KvOptions().tokens_per_block;
  }

  EngineOptions base_options(std::uint32_t context_tokens) const {
    EngineOptions options;
    options.model_path = setup_.model_path;
    options.context = context_tokens;
    options.sequences = 1;
    options.threads = setup_.threads;
    options.kv.disk_directory = directory_ + "/run";
    return options;
  }

  ProgressCallback until_interrupted() const {
    return [this](std::uint32_t, std::uint32_t) { return !context_.interrupts.pending(); };
  }

  /// Reads the prompt and draws one token.
  Result<Generation> read_prompt(Engine& engine, std::uint32_t tokens) const {
    HEADRACE_TRY_ASSIGN(const auto sequence, engine.new_sequence());
    GenerateOptions options;
    options.max_tokens = 1;
    options.ignore_end = true;
    options.on_progress = until_interrupted();
    HEADRACE_TRY_ASSIGN(Generation generation,
                        sequence->generate(make_text(tokens, model_.vocabulary, 0), options));
    if (context_.interrupts.pending()) return cancelled();
    return generation;
  }

  // --- A prompt that an earlier process has read -------------------------------------------------

  Result<void> measure_restart() {
    context_.err << "headrace: bench: a prompt of an earlier process" << std::endl;
    EngineOptions options = base_options(size_.restart_tokens + 16);
    {
      HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options));
      HEADRACE_TRY_ASSIGN(const Generation first, read_prompt(*engine, size_.restart_tokens));
      cold_seconds_ = first.prefill_seconds;
    }
    options.kv.disk_directory = directory_ + "/keep";
    options.kv.keep_disk = true;
    double cached_seconds = 0;
    for (const char* pass : {"write", "cached", "direct"}) {
      options.kv.disk_direct = std::string(pass) == "direct";
      HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options));
      HEADRACE_TRY_ASSIGN(const Generation read, read_prompt(*engine, size_.restart_tokens));
      const auto pages = static_cast<double>(engine->kv_stats().pages_filled_from_disk);
      if (std::string(pass) == "write") {
        add("restart", "first token, nothing stored", cold_seconds_, "s");
        add("restart", "first token, and everything is stored", read.prefill_seconds, "s");
        continue;
      }
      if (std::string(pass) == "cached") cached_seconds = read.prefill_seconds;
      const std::string how =
          std::string(pass) == "direct" ? ", direct" : ", in the system's cache";
      add("restart", "first token after a restart" + how, read.prefill_seconds, "s");
      add("restart", "times as fast as reading the prompt" + how,
          read.prefill_seconds > 0 ? cold_seconds_ / read.prefill_seconds : 0, "x");
      add("restart", "pages that were read" + how,
          read.prefill_seconds > 0
              ? pages * page_bytes(KvOptions().type) / read.prefill_seconds / 1e9
              : 0,
          rate_unit);
    }
    return measure_restart_of_peer(cached_seconds);
  }

  Result<void> measure_restart_of_peer(double cached_seconds) {
    context_.err << "headrace: bench: the same prompt in llama-server" << std::endl;
    const auto peer = measure_llama_server(make_text(size_.restart_tokens, model_.vocabulary, 0),
                                           directory_ + "/peer", setup_, context_);
    if (!peer.ok()) {
      if (peer.error().code == ErrorCode::cancelled) return peer.error();
      context_.err << "headrace: bench: llama-server is left out: " << peer.error().message
                   << std::endl;
      return {};
    }
    add("restart", "llama-server: first token, nothing stored", peer->read_seconds, "s");
    add("restart", "llama-server: slot restored and first token, in the system's cache",
        peer->restart_seconds, "s");
    add("restart", "first token after a restart, in the system's cache, in times of llama-server's",
        cached_seconds / peer->restart_seconds, "x");
    return {};
  }

  // --- What could be reached
  // ----------------------------------------------------------------------

  Result<void> measure_limits() {
    context_.err << "headrace: bench: the limits of disk and decoding" << std::endl;
    const auto limits = measure_tier_limits(context_.env, directory_ + "/keep", size_.limit_bytes);
    // Of so short a text there may be no page.
    if (!limits.ok() && limits.error().code == ErrorCode::not_found) return {};
    HEADRACE_TRY(limits);
    limits_ = *limits;
    add("limits", "pages read out of the system's cache by one core", limits_.buffered_read / 1e9,
        rate_unit);
    if (limits_.direct_read > 0) {
      add("limits", "pages read past it, 8 at a time", limits_.direct_read / 1e9, rate_unit);
    }
    add("limits", "raw pages verified and decoded by one core", limits_.raw_decode / 1e9,
        rate_unit);
    add("limits", "lossless pages verified and decoded by one core", limits_.lossless_decode / 1e9,
        rate_unit);
    add("limits", "bytes that lossless keeps of one byte", limits_.lossless_ratio, "");
    return {};
  }

  // --- Decoding with an eighth of the KV in memory
  // ------------------------------------------------

  Result<Decoding> decode(const EngineOptions& options) const {
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options));
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    const std::vector<TokenId> prompt = make_text(size_.prompt_tokens, model_.vocabulary, 0);
    HEADRACE_TRY(sequence->append(prompt, until_interrupted(), nullptr));
    const KvStats before = engine->kv_stats();
    GenerateOptions generate;
    generate.max_tokens = size_.steps + 1;
    generate.ignore_end = true;
    generate.on_text = [this](std::string_view) { return !context_.interrupts.pending(); };
    HEADRACE_TRY_ASSIGN(const Generation answer,
                        sequence->generate(std::span(prompt).first(1), generate));
    if (context_.interrupts.pending()) return cancelled();
    const KvStats after = engine->kv_stats();
    const auto pages =
        static_cast<double>(after.pages_filled_from_disk - before.pages_filled_from_disk +
                            after.pages_filled_from_host - before.pages_filled_from_host);
    // The token of the prompt is a step like the others.
    return Decoding{.tokens_per_second = answer.decode_tokens_per_second(),
                    .filled_bytes = pages * page_bytes(options.kv.type) / (size_.steps + 1)};
  }

  /// Tokens per second if the cores never wait and `byte_rate` is what one of them moves.
  double limit_of_cores(double in_memory, double bytes, double byte_seconds) const {
    const auto cores = static_cast<double>(context_.env.hardware_threads());
    const bool is_known = in_memory > 0 && byte_seconds > 0;
    return is_known ? 1 / (1 / in_memory + bytes * byte_seconds / cores) : 0;
  }

  static double inverse(double rate) { return rate > 0 ? 1 / rate : 0; }

  Result<void> measure_decoding() {
    context_.err << "headrace: bench: decoding with an eighth of the KV in memory" << std::endl;
    EngineOptions options = base_options(size_.prompt_tokens + size_.steps + 1);
    options.kv.reuse = false;
    const std::uint64_t all = options.context * model_.kv_bytes_per_token(options.kv.type);
    HEADRACE_TRY_ASSIGN(const Decoding memory, decode(options));
    add("decode", "everything in memory", memory.tokens_per_second, speed_unit);

    options.kv.memory_bytes = all / 8;
    HEADRACE_TRY_ASSIGN(const Decoding buffered, decode(options));
    const double buffered_cost = inverse(limits_.buffered_read) + inverse(limits_.raw_decode);
    add("decode", "1/8 in memory, disk in the system's cache", buffered.tokens_per_second,
        speed_unit, limit_of_cores(memory.tokens_per_second, buffered.filled_bytes, buffered_cost));

    options.kv.disk_direct = true;
    HEADRACE_TRY_ASSIGN(const Decoding direct, decode(options));
    const double device = direct.filled_bytes > 0 ? limits_.direct_read / direct.filled_bytes : 0;
    const double cores =
        limit_of_cores(memory.tokens_per_second, direct.filled_bytes, inverse(limits_.raw_decode));
    add("decode", "1/8 in memory, direct", direct.tokens_per_second, speed_unit,
        std::min(device, cores));

    options.kv.disk_direct = false;
    options.kv.memory_bytes = all * 11 / 20;
    options.kv.host_percent = 80;
    HEADRACE_TRY_ASSIGN(const Decoding host, decode(options));
    add("decode", "1/8 in the pool, the rest lossless in memory", host.tokens_per_second,
        speed_unit,
        limit_of_cores(memory.tokens_per_second, host.filled_bytes,
                       inverse(limits_.lossless_decode)));

    options.kv.host_percent = 0;
    options.kv.type = KvType::q8;
    options.kv.memory_bytes = 0;
    HEADRACE_TRY_ASSIGN(const Decoding q8, decode(options));
    add("decode", "q8, everything in memory", q8.tokens_per_second, speed_unit);
    const std::uint64_t all_q8 = options.context * model_.kv_bytes_per_token(KvType::q8);
    // Somewhat more than all of it: books and buffers are counted too.
    options.kv.memory_bytes = all_q8 * 9 / 8;
    options.kv.host_percent = 88;
    HEADRACE_TRY_ASSIGN(const Decoding q8_host, decode(options));
    add("decode", "q8, 1/8 in the pool, the rest by --kv-host-percent", q8_host.tokens_per_second,
        speed_unit, q8.tokens_per_second);
    options.kv.host_percent = 0;
    options.kv.memory_bytes = all_q8 / 2;
    HEADRACE_TRY_ASSIGN(const Decoding half, decode(options));
    add("decode", "q8, half in memory, disk in the system's cache", half.tokens_per_second,
        speed_unit, limit_of_cores(q8.tokens_per_second, half.filled_bytes, buffered_cost));
    return {};
  }

  // --- Sequences over one prefix
  // ------------------------------------------------------------------

  Result<void> measure_sharing() {
    context_.err << "headrace: bench: sequences over one prefix" << std::endl;
    EngineOptions options = base_options(size_.shared_tokens + 16);
    options.sequences = size_.sequences;
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options));
    std::vector<TokenId> text = make_text(size_.shared_tokens, model_.vocabulary, 0);
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (std::uint32_t i = 0; i < size_.sequences; ++i) {
      HEADRACE_TRY_ASSIGN(auto sequence, engine->new_sequence());
      // One token of its own, so that no two are one text.
      text.push_back(static_cast<TokenId>(i % model_.vocabulary));
      HEADRACE_TRY(sequence->append(text, until_interrupted(), nullptr));
      if (context_.interrupts.pending()) return cancelled();
      text.pop_back();
      sequences.push_back(std::move(sequence));
    }
    const double block = page_bytes(options.kv.type) * model_.layers;
    const std::uint32_t shared = size_.shared_tokens / options.kv.tokens_per_block;
    const double needed = (shared + size_.sequences) * block;
    const auto peak = static_cast<double>(engine->kv_stats().kv_bytes_peak);
    add("sharing",
        "KV memory of " + format_count(size_.sequences) + " sequences over " +
            format_count(size_.shared_tokens) + " tokens",
        peak / (1 << 20), "MiB");
    add("sharing", "the prefix once and an open block each", needed / (1 << 20), "MiB");
    add("sharing", "times that", needed > 0 ? peak / needed : 0, "x");
    return {};
  }

  // --- Finding a prefix
  // ---------------------------------------------------------------------------

  void measure_lookup() {
    const std::uint32_t block_tokens = KvOptions().tokens_per_block;
    const std::uint32_t tokens = size_.restart_tokens;
    BlockIndex index({.layers = model_.layers,
                      .tokens_per_block = block_tokens,
                      .blocks_max = 2 * (tokens / block_tokens + 1),
                      .secret = {},
                      .settings = {}});
    const std::vector<TokenId> text = make_text(tokens, model_.vocabulary, 0);
    Block* parent = &index.root("");
    for (std::uint32_t at = 0; at + block_tokens <= tokens; at += block_tokens) {
      const std::span<const TokenId> part = std::span(text).subspan(at, block_tokens);
      Block& block = index.add(*parent, at);
      index.seal(block, index.key_of(*parent, part), part);
      for (PageEntry& page : block.pages) page.stored = 1;
      parent = &block;
    }
    const auto look_up = [&](std::span<const TokenId> wanted) {
      // As SequenceCache::take_cached() does: whole blocks by their keys, then a part of one.
      const Block* found = &index.root("");
      std::uint32_t matched = 0;
      while (matched + block_tokens <= wanted.size()) {
        const Block* const next = index.find(*found, wanted.subspan(matched, block_tokens));
        if (next == nullptr) break;
        found = next;
        matched += block_tokens;
      }
      return matched + index.longest_match(*found, wanted.subspan(matched)).tokens;
    };
    const auto time_of = [&](std::span<const TokenId> wanted) {
      constexpr int rounds = 16;
      double best = 1;
      for (int round = 0; round < rounds; ++round) {
        const std::chrono::nanoseconds start = context_.env.now();
        const std::uint32_t matched = look_up(wanted);
        if (matched <= tokens) best = std::min(best, seconds_since(start));
      }
      return best;
    };
    const double hit = time_of(text);
    const double miss = time_of(make_text(tokens, model_.vocabulary, 1));
    add("lookup", "a prompt that is stored", hit / tokens * 1e9, "ns/token");
    add("lookup", "a prompt of which nothing is stored", miss / tokens * 1e9, "ns/token");
    add("lookup", "that in percent of reading the prompt",
        cold_seconds_ > 0 ? miss / cold_seconds_ * 100 : 0, "%");
  }

  const BenchSetup& setup_;
  const StoreBenchSize size_;
  const ModelInfo& model_;
  const std::string directory_;
  CommandContext& context_;
  std::vector<BenchFigure> figures_;
  TierLimits limits_;
  double cold_seconds_ = 0;
};

}  // namespace

StoreBenchSize quick_store_size() {
  return {.prompt_tokens = 4'080,
          .steps = 16,
          .restart_tokens = 1'536,
          .shared_tokens = 1'024,
          .sequences = 8,
          .limit_bytes = std::uint64_t{64} << 20};
}

StoreBenchSize fit_store_size(StoreBenchSize size, const ModelInfo& model) {
  const std::uint32_t most = model.trained_context;
  size.prompt_tokens = std::min(size.prompt_tokens, most - std::min(most, size.steps + 1));
  size.restart_tokens = std::min(size.restart_tokens, most - std::min(most, 16U));
  size.shared_tokens = std::min(size.shared_tokens, most - std::min(most, 16U));
  return size;
}

Result<std::vector<BenchFigure>> measure_store(const BenchSetup& setup, const StoreBenchSize& size,
                                               CommandContext& context) {
  HEADRACE_TRY_ASSIGN(const ModelInfo model, context.inspect_model(setup.model_path));
  const std::string parent =
      setup.disk_directory.empty() ? context.env.temporary_directory() : setup.disk_directory;
  StoreBench bench(setup, fit_store_size(size, model), model,
                   parent + "/headrace-bench-" + std::to_string(context.env.random()), context);
  auto figures = bench.run();
  const auto cleaned = bench.clean_up();
  if (figures.ok()) HEADRACE_TRY(cleaned);
  return figures;
}

}  // namespace headrace
