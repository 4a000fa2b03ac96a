#include "cli/bench_recall.h"

#include <array>
#include <span>
#include <utility>

namespace headrace {
namespace {

/// A way to answer, in the order in which they are measured.
struct Way {
  const char* name;
  bool recalls = false;
  bool by_layer = false;
  /// Of the KV of the whole text, what the pool has room for; 0: all.
  double pool_part = 0;
  /// Of all the memory that exact attention takes, what there is; 0: no such limit.
  double memory_part = 0;
};

constexpr Way ways[] = {
    {.name = "exact"},
    {.name = "recall", .recalls = true},
    {.name = "recall by layer", .recalls = true, .by_layer = true},
    {.name = "recall by layer, 1/4 in the pool",
     .recalls = true,
     .by_layer = true,
     .pool_part = 0.25},
    {.name = "recall by layer, 36 % less memory",
     .recalls = true,
     .by_layer = true,
     .memory_part = 0.64},
    {.name = "recall by layer, 75 % less memory",
     .recalls = true,
     .by_layer = true,
     .memory_part = 0.25},
};
constexpr std::size_t exact_way = 0;
constexpr std::size_t by_layer_way = 2;

/// What the rounds of one way gave.
struct Samples {
  std::vector<double> rate, p50, p99, to_exact, p50_to_exact, p99_to_exact, to_all_in_memory;
  KvStats stats;
};

class RecallBench {
 public:
  RecallBench(const BenchSetup& setup, const RecallBenchSize& size, CommandContext& context)
      : setup_(setup), size_(size), context_(context) {}

  Result<std::vector<BenchFigure>> run(const std::string& text) {
    for (std::uint32_t round = 0; round < size_.rounds; ++round) {
      context_.err << "headrace: bench: recall, round " << round + 1 << " of " << size_.rounds
                   << std::endl;
      for (std::size_t way = 0; way < std::size(ways); ++way) HEADRACE_TRY(measure(way, text));
      HEADRACE_TRY(measure_peer());
      compare();
    }
    return figures();
  }

 private:
  EngineOptions options_of(const Way& way) const {
    EngineOptions options;
    options.model_path = setup_.model_path;
    options.context = size_.prompt_tokens + size_.steps + 1;
    options.sequences = 1;
    options.threads = setup_.threads;
    options.kv.reuse = false;
    options.kv.disk_directory = setup_.disk_directory;
    if (way.recalls) options.attention.mode = AttentionMode::recall;
    options.attention.recall_share = size_.share;
    if (way.by_layer) {
      options.attention.recall_by_layer = true;
      options.attention.recall_group = 8;
    }
    const auto part_of = [](double part, std::uint64_t bytes) {
      return static_cast<std::uint64_t>(part * static_cast<double>(bytes));
    };
    const std::uint64_t exact = samples_[exact_way].stats.kv_bytes_limit;
    const std::uint64_t sketches = samples_[by_layer_way].stats.kv_bytes_limit - exact;
    if (way.pool_part > 0) {
      options.kv.memory_bytes =
          part_of(way.pool_part, samples_[exact_way].stats.kv_bytes_needed) + sketches + io_bytes;
    }
    if (way.memory_part > 0) options.kv.memory_bytes = part_of(way.memory_part, exact);
    if (options.kv.memory_bytes > 0) {
      options.kv.codec = size_.codec;
      options.attention.recall_load_tokens = size_.load_tokens;
    }
    return options;
  }

  Result<void> measure(std::size_t way, const std::string& text) {
    const EngineOptions options = options_of(ways[way]);
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options));
    HEADRACE_TRY_ASSIGN(std::vector<TokenId> tokens, engine->tokenize(text, {}));
    if (tokens.size() < size_.prompt_tokens) {
      return Error{ErrorCode::invalid_argument,
                   "the text of --recall has " + std::to_string(tokens.size()) +
                       " tokens; give one with at least " + std::to_string(size_.prompt_tokens)};
    }
    tokens.resize(size_.prompt_tokens);
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    GenerateOptions generate;
    generate.max_tokens = size_.steps + 1;  // the first is the prompt's
    generate.ignore_end = true;
    generate.on_progress = [this](std::uint32_t, std::uint32_t) {
      return !context_.interrupts.pending();
    };
    generate.on_text = [this](std::string_view) { return !context_.interrupts.pending(); };
    HEADRACE_TRY_ASSIGN(const Generation answer, sequence->generate(tokens, generate));
    if (context_.interrupts.pending()) return Error{ErrorCode::cancelled, "stopped"};
    Samples& samples = samples_[way];
    samples.rate.push_back(answer.decode_tokens_per_second());
    samples.p50.push_back(answer.step_seconds_p50);
    samples.p99.push_back(answer.step_seconds_p99);
    samples.stats = engine->kv_stats();
    return {};
  }

  /// llama.cpp, behind as many tokens.
  Result<void> measure_peer() {
    if (setup_.llama_bench.empty()) return {};
    HEADRACE_TRY_ASSIGN(const auto peer, make_bench_engine("llama.cpp", setup_, context_));
    const Workload workload = {.name = "decode",
                               .kind = WorkloadKind::decode,
                               .prompt_tokens = size_.prompt_tokens,
                               .steps = size_.steps};
    HEADRACE_TRY_ASSIGN(const BenchSample sample, peer->measure(workload));
    peer_.push_back(sample.tokens_per_second);
    for (std::size_t way = 0; way < std::size(ways); ++way)
      to_peer_[way].push_back(samples_[way].rate.back() / sample.tokens_per_second);
    return {};
  }

  /// The ways of one round with each other.
  void compare() {
    const Samples& exact = samples_[exact_way];
    for (Samples& samples : samples_) {
      samples.to_exact.push_back(samples.rate.back() / exact.rate.back());
      samples.p50_to_exact.push_back(samples.p50.back() / exact.p50.back());
      samples.p99_to_exact.push_back(samples.p99.back() / exact.p99.back());
      samples.to_all_in_memory.push_back(samples.rate.back() / samples_[by_layer_way].rate.back());
    }
  }

  std::vector<BenchFigure> figures() const {
    std::vector<BenchFigure> figures;
    if (!peer_.empty()) figures.push_back({"llama.cpp", "answer", median(peer_), "tok/s"});
    for (std::size_t i = 0; i < std::size(ways); ++i) {
      const Samples& samples = samples_[i];
      const KvStats& stats = samples.stats;
      const auto add = [&](const char* name, double value, const char* unit) {
        figures.push_back({ways[i].name, name, value, unit});
      };
      add("answer", median(samples.rate), "tok/s");
      if (i != exact_way) add("in times of exact", median(samples.to_exact), "x");
      if (!peer_.empty()) add("in times of llama.cpp's", median(to_peer_[i]), "x");
      add("half of the tokens took at most", 1e3 * median(samples.p50), "ms");
      if (i != exact_way) add("in times of exact", median(samples.p50_to_exact), "x");
      add("99 % of the tokens took at most", 1e3 * median(samples.p99), "ms");
      if (i != exact_way) add("in times of exact", median(samples.p99_to_exact), "x");
      add("KV memory, with everything", static_cast<double>(stats.kv_bytes_peak) / mebibyte, "MiB");
      if (!ways[i].recalls) continue;
      add("tokens read of a layer", stats.recall_tokens_read, "");
      if (stats.recall_groups_read == 0) continue;
      add("in times of the same with all in memory", median(samples.to_all_in_memory), "x");
      add("of what was read in memory",
          100 - 100 * static_cast<double>(stats.recall_groups_loaded) /
                    static_cast<double>(stats.recall_groups_read),
          "%");
      if (size_.load_tokens > 0) {
        add("of it waited for a later step",
            100 * static_cast<double>(stats.recall_groups_deferred) /
                static_cast<double>(stats.recall_groups_read),
            "%");
      }
      add("loaded for a token",
          static_cast<double>(stats.recall_bytes_loaded) / mebibyte / size_.steps, "MiB");
    }
    return figures;
  }

  static constexpr double mebibyte = 1 << 20;
  /// For buffers of the disk tier, which an engine with everything in memory has not.
  static constexpr std::uint64_t io_bytes = std::uint64_t{2} << 20;

  const BenchSetup& setup_;
  const RecallBenchSize size_;
  CommandContext& context_;
  std::array<Samples, std::size(ways)> samples_;
  std::vector<double> peer_;
  std::array<std::vector<double>, std::size(ways)> to_peer_;
};

}  // namespace

RecallBenchSize quick_recall_size() {
  RecallBenchSize size;
  size.prompt_tokens = 4'096;
  size.steps = 64;
  size.rounds = 1;
  return size;
}

Result<std::vector<BenchFigure>> measure_recall(const BenchSetup& setup,
                                                const RecallBenchSize& size,
                                                const std::string& text, CommandContext& context) {
  return RecallBench(setup, size, context).run(text);
}

}  // namespace headrace
