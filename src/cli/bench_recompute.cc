#include "cli/bench_recompute.h"

#include <string>

namespace headrace {
namespace {

/// Rows that are computed together. The first is what a prompt is read in by default.
constexpr std::uint32_t batches[] = {512, 256, 128, 64, 16};

struct Rates {
  std::vector<double> read, recomputed, to_read;
};

class RecomputeBench {
 public:
  RecomputeBench(const BenchSetup& setup, const RecomputeBenchSize& size, CommandContext& context)
      : setup_(setup), size_(size), context_(context), rates_(std::size(batches)) {}

  Result<std::vector<BenchFigure>> run() {
    HEADRACE_TRY(find_memory());
    for (std::uint32_t round = 0; round < size_.rounds; ++round) {
      context_.err << "headrace: bench: recompute, round " << round + 1 << " of " << size_.rounds
                   << std::endl;
      for (std::size_t i = 0; i < std::size(batches); ++i) HEADRACE_TRY(measure(i));
      for (Rates& rates : rates_)
        rates.to_read.push_back(rates.recomputed.back() / rates_.front().read.back());
    }
    std::vector<BenchFigure> figures;
    figures.push_back({"prompt", "read, 512 rows at once", median(rates_.front().read), "tok/s"});
    for (std::size_t i = 0; i < std::size(batches); ++i) {
      const std::string part = std::to_string(batches[i]) + " rows at once";
      figures.push_back({part, "computed again", median(rates_[i].recomputed), "tok/s"});
      figures.push_back({part, "of reading", 100 * median(rates_[i].to_read), "%"});
    }
    return figures;
  }

 private:
  EngineOptions options(std::uint32_t rows) const {
    EngineOptions options;
    options.model_path = setup_.model_path;
    options.context = size_.tokens + 2;
    options.sequences = 2;
    options.threads = setup_.threads;
    options.chunk_tokens = rows;
    options.kv.reuse = false;
    options.kv.evicted = "recipe";
    options.kv.memory_bytes = memory_bytes_;
    return options;
  }

  /// For little more than one of the two texts: so nearly all of the other one has left, and what
  /// is compared are the same positions.
  Result<void> find_memory() {
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options(batches[0])));
    memory_bytes_ = engine->kv_stats().kv_bytes_limit / 100 * 57;
    return {};
  }

  static std::vector<TokenId> text(const Engine& engine, std::uint32_t tokens, std::uint32_t salt) {
    std::vector<TokenId> text;
    text.reserve(tokens);
    for (std::uint32_t i = 0; i < tokens; ++i)
      text.push_back(static_cast<TokenId>((i * 7'919 + salt) % engine.model().vocabulary));
    return text;
  }

  Result<void> measure(std::size_t batch) {
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options(batches[batch])));
    HEADRACE_TRY_ASSIGN(const auto first, engine->new_sequence());
    HEADRACE_TRY_ASSIGN(const auto second, engine->new_sequence());
    const std::vector<TokenId> tokens = text(*engine, size_.tokens, 0);
    const std::chrono::nanoseconds start = context_.env.now();
    HEADRACE_TRY(first->append(tokens, on_progress(), nullptr));
    const double seconds = std::chrono::duration<double>(context_.env.now() - start).count();
    // The other text takes the memory, and the first token behind the first one wants it back.
    HEADRACE_TRY(second->append(text(*engine, size_.tokens, 1), on_progress(), nullptr));
    HEADRACE_TRY(first->append(text(*engine, 1, 2), nullptr, nullptr));
    const KvStats stats = engine->kv_stats();
    rates_[batch].read.push_back(seconds > 0 ? size_.tokens / seconds : 0);
    rates_[batch].recomputed.push_back(stats.recompute_seconds > 0
                                           ? static_cast<double>(stats.recomputed_tokens) /
                                                 stats.recompute_seconds
                                           : 0);
    return {};
  }

  ProgressCallback on_progress() {
    return [this](std::uint32_t, std::uint32_t) { return !context_.interrupts.pending(); };
  }

  const BenchSetup& setup_;
  const RecomputeBenchSize size_;
  CommandContext& context_;
  std::uint64_t memory_bytes_ = 0;
  std::vector<Rates> rates_;
};

}  // namespace

RecomputeBenchSize quick_recompute_size() { return {.tokens = 1'024, .rounds = 1}; }

Result<std::vector<BenchFigure>> measure_recompute(const BenchSetup& setup,
                                                   const RecomputeBenchSize& size,
                                                   CommandContext& context) {
  return RecomputeBench(setup, size, context).run();
}

}  // namespace headrace
