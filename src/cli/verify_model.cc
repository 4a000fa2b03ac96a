#include "cli/verify_model.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/hash.h"
#include "cli/progress.h"
#include "env/scratch_directory.h"

namespace headrace {
namespace {

/// Read one at a time behind the text, each the likeliest after those before it.
constexpr std::uint32_t answer_tokens = 16;
constexpr const char* session_name = "verify";

std::size_t likeliest(std::span<const float> logits) {
  return static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
}

class ModelVerifier {
 public:
  ModelVerifier(CommandContext& context, const VerifyModelOptions& options)
      : context_(context), options_(options), progress_(context, "verifying") {}

  Result<std::vector<TierCheck>> run() {
    HEADRACE_TRY(read_in_memory());
    HEADRACE_TRY(check("disk", [](KvOptions&) {}));
    HEADRACE_TRY(check("disk, direct", [](KvOptions& kv) { kv.disk_direct = true; }));
    HEADRACE_TRY(check("disk, lossless", [](KvOptions& kv) { kv.disk_codec = "lossless"; }));
    HEADRACE_TRY(check("memory, lossless", [](KvOptions& kv) { kv.host_percent = 40; }));
    HEADRACE_TRY(check_restart());
    HEADRACE_TRY(check_session());
    HEADRACE_TRY(check_fork());
    progress_.finish();
    return std::move(checks_);
  }

 private:
  /// Everything in memory: what all others are compared with.
  Result<void> read_in_memory() {
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options_.engine));
    if (engine->context() < verify_context_least) {
      return Error{ErrorCode::invalid_argument, "--context must be at least " +
                                                    std::to_string(verify_context_least) +
                                                    " to verify a model"};
    }
    const std::uint32_t text_tokens = engine->context() - answer_tokens;
    kv_bytes_ = engine->model().kv_bytes(options_.engine.kv.type, engine->context());
    HEADRACE_TRY_ASSIGN(tokens_, engine->tokenize(options_.text, {}));
    HEADRACE_TRY_ASSIGN(const auto more, engine->tokenize(options_.text, {.add_special = false}));
    if (more.empty()) {
      return Error{ErrorCode::invalid_argument, "the text has no tokens; give it a longer one"};
    }
    while (tokens_.size() < text_tokens) tokens_.insert(tokens_.end(), more.begin(), more.end());
    tokens_.resize(text_tokens);
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    TokenId next = 0;
    const auto keep_row = [&](std::uint32_t, const float* logits) {
      const std::span<const float> row(logits, engine->model().vocabulary);
      rows_.push_back(hash_bytes(std::as_bytes(row)));
      next = static_cast<TokenId>(likeliest(row));
      return true;
    };
    HEADRACE_TRY(sequence->append(tokens_, on_progress(), keep_row));
    for (std::uint32_t answer = 0; answer < answer_tokens; ++answer) {
      tokens_.push_back(next);
      HEADRACE_TRY(sequence->append(std::span(tokens_).last(1), on_progress(), keep_row));
    }
    add_check("memory").rows_equal = rows_.size();
    checks_.back().rows_compared = rows_.size();
    return {};
  }

  /// Little memory, and what `change` makes of the tiers below it. Every row is compared.
  Result<void> check(const std::string& name, const std::function<void(KvOptions&)>& change) {
    HEADRACE_TRY_ASSIGN(const ScratchDirectory directory, ScratchDirectory::create(context_.env));
    KvOptions kv = kv_in(directory);
    change(kv);
    add_check(name);
    HEADRACE_TRY_ASSIGN(const auto engine, open(kv));
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    return compare(*engine, *sequence, 0);
  }

  /// What one engine has left is taken over by the next.
  Result<void> check_restart() {
    HEADRACE_TRY_ASSIGN(const ScratchDirectory directory, ScratchDirectory::create(context_.env));
    KvOptions kv = kv_in(directory);
    kv.keep_disk = true;
    add_check("restart");
    {
      HEADRACE_TRY_ASSIGN(const auto engine, open(kv));
      HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
      HEADRACE_TRY(sequence->append(tokens_, on_progress(), nullptr));
    }
    HEADRACE_TRY_ASSIGN(const auto engine, open(kv));
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    HEADRACE_TRY(sequence->append(first_part(), on_progress(), nullptr));
    return compare(*engine, *sequence, first_part().size());
  }

  /// A conversation that was saved goes on in another engine.
  Result<void> check_session() {
    HEADRACE_TRY_ASSIGN(const ScratchDirectory directory, ScratchDirectory::create(context_.env));
    KvOptions kv = kv_in(directory);
    kv.keep_disk = true;
    add_check("session");
    {
      HEADRACE_TRY_ASSIGN(const auto engine, open(kv));
      HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
      HEADRACE_TRY(sequence->append(first_part(), on_progress(), nullptr));
      HEADRACE_TRY(engine->save_session(session_name, *sequence, ""));
    }
    HEADRACE_TRY_ASSIGN(const auto engine, open(kv));
    HEADRACE_TRY_ASSIGN(const SessionState state, engine->read_session(session_name));
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    HEADRACE_TRY(sequence->append(state.tokens, on_progress(), nullptr));
    return compare(*engine, *sequence, state.tokens.size());
  }

  /// Two sequences go on from one text.
  Result<void> check_fork() {
    HEADRACE_TRY_ASSIGN(const ScratchDirectory directory, ScratchDirectory::create(context_.env));
    add_check("fork");
    EngineOptions options = options_.engine;
    options.sequences = 2;
    options.kv = kv_in(directory);
    options.kv.memory_bytes = 0;
    HEADRACE_TRY_ASSIGN(const auto engine, context_.open_engine(options));
    HEADRACE_TRY_ASSIGN(const auto sequence, engine->new_sequence());
    HEADRACE_TRY(sequence->append(first_part(), on_progress(), nullptr));
    HEADRACE_TRY_ASSIGN(const auto copy, sequence->fork());
    HEADRACE_TRY(compare(*engine, *copy, first_part().size()));
    return compare(*engine, *sequence, first_part().size());
  }

  /// Reads the tokens from `begin` on, the answer one by one, and compares each row.
  Result<void> compare(Engine& engine, Sequence& sequence, std::size_t begin) {
    TierCheck& check = checks_.back();
    std::size_t position = begin;
    const auto compare_row = [&](std::uint32_t, const float* logits) {
      const std::span<const float> row(logits, engine.model().vocabulary);
      ++check.rows_compared;
      if (hash_bytes(std::as_bytes(row)) == rows_[position++]) ++check.rows_equal;
      return true;
    };
    const std::size_t text_tokens = tokens_.size() - answer_tokens;
    const auto text = std::span(tokens_).first(text_tokens).subspan(begin);
    HEADRACE_TRY(sequence.append(text, on_progress(), compare_row));
    for (const TokenId& token : std::span(tokens_).last(answer_tokens)) {
      HEADRACE_TRY(sequence.append(std::span(&token, 1), on_progress(), compare_row));
    }
    const KvStats stats = engine.kv_stats();
    check.restored_pages = stats.pages_filled_from_host + stats.pages_filled_from_disk;
    return {};
  }

  /// What a restart or a session begins with; not a whole number of blocks.
  std::span<const TokenId> first_part() const {
    return std::span(tokens_).first(tokens_.size() * 3 / 4 - 5);
  }

  TierCheck& add_check(const std::string& name) {
    checks_.push_back({.tier = name, .tokens = tokens_.size()});
    return checks_.back();
  }

  KvOptions kv_in(const ScratchDirectory& directory) const {
    KvOptions kv = options_.engine.kv;
    kv.disk_directory = directory.path();
    return kv;
  }

  /// With an eighth of the memory, or as little more as it opens with.
  Result<std::unique_ptr<Engine>> open(const KvOptions& kv) {
    EngineOptions options = options_.engine;
    options.kv = kv;
    constexpr std::uint64_t least_bytes = std::uint64_t{64} << 10;
    for (options.kv.memory_bytes = std::max(kv_bytes_ / 8, least_bytes);;
         options.kv.memory_bytes *= 2) {
      auto engine = context_.open_engine(options);
      const bool is_too_little = !engine.ok() && engine.error().code == ErrorCode::out_of_budget;
      if (!is_too_little || options.kv.memory_bytes > (std::uint64_t{1} << 40)) return engine;
    }
  }

  ProgressCallback on_progress() {
    return [this](std::uint32_t done, std::uint32_t total) {
      if (total > 1) progress_.update(done, total);
      return !context_.interrupts.pending();
    };
  }

  CommandContext& context_;
  const VerifyModelOptions& options_;
  Progress progress_;
  std::vector<TokenId> tokens_;  // the text and the answer
  std::vector<Digest128> rows_;  // of the logits after each of them, everything in memory
  std::vector<TierCheck> checks_;
  std::uint64_t kv_bytes_ = 0;  // of a full context
};

}  // namespace

Result<std::vector<TierCheck>> verify_model(CommandContext& context,
                                            const VerifyModelOptions& options) {
  return ModelVerifier(context, options).run();
}

}  // namespace headrace
