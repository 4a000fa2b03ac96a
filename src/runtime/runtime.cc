#include "runtime/runtime.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "cache/replay.h"
#include "codec/map_codec.h"
#include "runtime/open_options.h"
#include "runtime/sequence.h"

namespace headrace {

namespace {

/// Grows with every change of a kernel or of the graph that alters a bit of K or V: pages of a
/// version before are not those that this one would compute.
constexpr std::uint32_t numerics_version = 2;

/// Of what the bytes of pages depend on besides the model file and the shape of a page.
Digest128 numerics_digest(const Model& model, std::optional<HiddenType> kept) {
  Hasher hasher;
  hasher.value(numerics_version);
  hasher.field(std::as_bytes(std::span(std::string_view(kernel::kernels().name))));
  // Models with factors for long contexts choose them by the length of the context.
  for (const RopeSpec* rope : {&model.rope, &model.window_rope}) {
    hasher.field(std::as_bytes(std::span(rope->frequencies)));
    hasher.field(std::as_bytes(std::span(&rope->magnitude, 1)));
  }
  // Queries, keys and values come from hidden states as they are kept.
  if (kept) hasher.value(*kept);
  return hasher.finish();
}

}  // namespace

Result<ModelInfo> inspect_model(const std::string& path) {
  return or_no_memory(ErrorCode::out_of_budget, [&]() -> Result<ModelInfo> {
    HEADRACE_TRY_ASSIGN(const std::unique_ptr<ModelFile> file, ModelFile::open(posix_env(), path));
    return file->info();
  });
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  return Runtime::open(posix_env(), options);
}

Result<std::unique_ptr<Engine>> Runtime::open(Env& env, const EngineOptions& options) {
  return or_no_memory(ErrorCode::out_of_budget, [&]() -> Result<std::unique_ptr<Engine>> {
    std::unique_ptr<Runtime> runtime(new Runtime(env));
    HEADRACE_TRY(runtime->load(options));
    return std::unique_ptr<Engine>(std::move(runtime));
  });
}

Error Runtime::broken_off() {
  return {ErrorCode::out_of_budget,
          "memory ran out in an earlier call, so this engine cannot go on; open it anew"};
}

Result<void> Runtime::load(const EngineOptions& options) {
  HEADRACE_TRY(kernel::check_forced_kernels());
  HEADRACE_TRY_ASSIGN(file_, ModelFile::open(env_, options.model_path));
  info_ = file_->info();
  HEADRACE_TRY_ASSIGN(const EngineOptions checked, check_options(options, info_, env_));
  context_ = checked.context;
  HEADRACE_TRY_ASSIGN(Model model,
                      load_model(file_->gguf(), std::min(checked.context, info_.trained_context)));
  model_ = std::make_unique<Model>(std::move(model));
  HEADRACE_TRY_ASSIGN(vocabulary_, Vocabulary::load(options.model_path));
  if (vocabulary_->size() != info_.vocabulary) {
    return Error{ErrorCode::corrupt, "'" + options.model_path + "' has " +
                                         std::to_string(vocabulary_->size()) +
                                         " tokens in its vocabulary and embeddings for " +
                                         std::to_string(info_.vocabulary)};
  }
  parallel_ = env_.new_parallel(checked.threads);

  PageStoreOptions store;
  store.shape = {checked.kv.tokens_per_block, info_.kv_heads, info_.head_dim, checked.kv.type};
  store.layers = info_.layers;
  store.windows = model_->shape.windows;
  store.step_rows = checked.chunk_tokens;
  store.context = checked.context;
  store.sequences = checked.sequences;
  store.memory_bytes = checked.kv.memory_bytes;
  store.disk_directory = checked.kv.disk_directory;
  store.disk_bytes = checked.kv.disk_bytes;
  store.keep_disk = checked.kv.keep_disk;
  store.write_through = checked.kv.write_through;
  store.keeps_text_only = checked.kv.evicted == "recipe";
  store.disk_direct = checked.kv.disk_direct;
  HEADRACE_TRY_ASSIGN(store.disk_codec, find_codec(checked.kv.disk_codec));
  HEADRACE_TRY_ASSIGN(store.host_codec, find_codec(checked.kv.host_codec));
  store.policy = *parse_cache_policy(checked.kv.policy);
  store.prefetch = *parse_prefetch(checked.kv.prefetch);
  store.model = file_->digest(*parallel_);
  const std::optional<HiddenType> kept = parse_hidden_codec(checked.kv.codec);
  store.numerics = numerics_digest(*model_, kept);
  store.reuse = checked.kv.reuse;
  store.attention = checked.attention;
  if (headrace::packs_positions(checked.attention)) store.exact_tokens_most = info_.trained_context;
  store.on_eviction = checked.on_eviction;
  if (checked.token_weights) {
    store.new_token_weight = [this, weights = checked.token_weights] {
      return [this, weigh = weights()](TokenId token) {
        return weigh(token, vocabulary_->token_bytes(token), vocabulary_->is_control(token));
      };
    };
  }
  HEADRACE_TRY_ASSIGN(store.codec, open_codec(checked.kv.codec, store.model));
  // What defines a page is also what is kept of it.
  if (!store.codec->is_lossless() || kept) {
    store.disk_codec = store.codec;
    if (store.host_codec->id() != CodecId::raw) store.host_codec = store.codec;
  }
  if (kept && !makes_smaller(*store.codec, store.shape)) {
    log_message(LogLevel::warn, "--kv-codec " + checked.kv.codec +
                                    ": hidden states of this model take more room than its keys "
                                    "and values; use lossless");
  }
  // Pages that are no smaller there stay in the pool: it has them read in place, and copies
  // nothing.
  if (makes_smaller(*store.host_codec, store.shape)) {
    store.host_bytes = checked.kv.memory_bytes / 100 * checked.kv.host_percent;
  }
  HEADRACE_TRY_ASSIGN(store_, PageStore::open(env_, store));
  const std::uint32_t rows_max =
      std::max(checked.chunk_tokens, checked.kv.tokens_per_block);  // replay runs whole blocks
  HEADRACE_TRY_ASSIGN(ForwardPass forward,
                      ForwardPass::create(*model_, *parallel_, store.shape, rows_max, kept));
  if (store.reads_a_part()) {
    HEADRACE_TRY(forward.prepare_recall(store.shape, store.context, store.attention));
  }
  forward_ = std::make_unique<ForwardPass>(std::move(forward));
  chunk_tokens_ = checked.chunk_tokens;
  return {};
}

Result<const Codec*> Runtime::open_codec(const std::string& name, const Digest128& model) {
  constexpr std::string_view map_prefix = "map:";
  if (name.starts_with(map_prefix)) return open_map_codec(name.substr(map_prefix.size()), model);
  if (const std::optional<HiddenType> type = parse_hidden_codec(name))
    return open_hidden_codec(*type);
  return find_codec(name);
}

Result<const Codec*> Runtime::open_map_codec(const std::string& path, const Digest128& model) {
  HEADRACE_TRY_ASSIGN(const std::string text, env_.read_file(path));
  const auto of_map = [&](const Error& error) {
    return Error{error.code, "precision map '" + path + "': " + error.message};
  };
  Result<PrecisionMap> map = parse_precision_map(text);
  if (!map.ok()) return of_map(map.error());
  const auto checked = check_precision_map(*map, {to_hex(model), info_.layers, info_.kv_heads});
  if (!checked.ok()) return of_map(checked.error());
  codec_ = new_map_codec(std::move(map).value());
  return codec_.get();
}

Result<const Codec*> Runtime::open_hidden_codec(HiddenType type) {
  // Threads of the engine and of the tiers compute at the same time.
  const auto workspaces = static_cast<std::uint32_t>(
      parallel_->workers() + std::min<std::size_t>(env_.hardware_threads(), 8));
  HEADRACE_TRY_ASSIGN(projector_, KvProjector::create(*model_, type, workspaces));
  codec_ = new_hidden_codec(*projector_);
  return codec_.get();
}

KvStats Runtime::kv_stats() const {
  KvStats stats = store_->stats();
  const RecallCounters recall = forward_->recall_counters();
  stats.recall_choices = recall.choices;
  if (recall.choices > 0) {
    const auto choices = static_cast<double>(recall.choices);
    stats.recall_tokens_read = static_cast<double>(recall.tokens_read) / choices;
    if (store_->options().recalls()) stats.recall_mass_left_out = recall.mass_left_out / choices;
  }
  const CertifiedCounters& certified = forward_->certified_counters();
  if (certified.layers > 0) {
    stats.certified = {certified.mass_not_read_sum / static_cast<double>(certified.heads),
                       certified.mass_not_read_most,
                       certified.error_sum / static_cast<double>(certified.layers),
                       certified.error_most};
  }
  return stats;
}

Result<std::unique_ptr<Sequence>> Runtime::new_sequence(const SequenceOptions& options) {
  return guarded([&]() -> Result<std::unique_ptr<Sequence>> {
    HEADRACE_TRY_ASSIGN(std::unique_ptr<SequenceCache> cache,
                        SequenceCache::create(*store_, options));
    return std::unique_ptr<Sequence>(std::make_unique<RuntimeSequence>(*this, std::move(cache)));
  });
}

Result<void> Runtime::save(const std::string& name, Sequence& sequence, std::string_view note) {
  SequenceCache& cache = static_cast<RuntimeSequence&>(sequence).cache();
  SessionRecord session;
  session.name = name;
  session.tenant = cache.options().tenant;
  session.note = note;
  session.model_name = info_.name;
  std::uint32_t rebuilds_left = 2 * cache.table().blocks() * cache.table().layers();
  while (true) {
    Result<void> saved = cache.save(session);
    if (saved.ok() || saved.error().code != ErrorCode::page_lost) return saved;
    const std::optional<PagePlace> lost = cache.lost_for_save();
    if (!lost) return Error{ErrorCode::io, saved.error().message};
    HEADRACE_TRY(replay(cache, *lost, rebuilds_left));
  }
}

Result<SessionState> Runtime::read_session(const std::string& name) {
  return guarded([&]() -> Result<SessionState> {
    HEADRACE_TRY_ASSIGN(SessionRecord session, store_->read_session(name));
    if (session.model != store_->options().model) {
      return Error{ErrorCode::unsupported, "session '" + name + "' was saved with another model (" +
                                               session.model_name + "); open it with that one"};
    }
    return SessionState{std::move(session.tokens), std::move(session.note),
                        std::move(session.tenant)};
  });
}

std::uint32_t Runtime::rows_possible(const SequenceCache& sequence, std::size_t wanted) const {
  return sequence.rows_possible(
      static_cast<std::uint32_t>(std::min<std::size_t>(wanted, chunk_tokens_)));
}

Result<void> Runtime::step(SequenceCache& sequence, std::span<const TokenId> tokens,
                           std::uint32_t first_logits_row, const RowLogits& on_logits) {
  return step_alone({&sequence, tokens, first_logits_row}, on_logits);
}

Result<void> Runtime::step_guessing(SequenceCache& sequence, std::span<const TokenId> tokens,
                                    const RowLogits& on_logits) {
  return step_alone({&sequence, tokens, 0, true}, on_logits);
}

Result<void> Runtime::step_alone(const StepPart& part, const RowLogits& on_logits) {
  const auto taken = step({&part, 1}, [&](std::size_t, std::uint32_t row, const float* logits) {
    return on_logits(row, logits);
  });
  return taken.ok() ? Result<void>() : Result<void>(taken.error());
}

Result<std::size_t> Runtime::begin(std::span<const StepPart> parts) {
  const std::size_t most = store_->holds_everything()
                               ? parts.size()
                               : std::min<std::size_t>(parts.size(), store_->stream_slots());
  std::size_t taken = 0;
  while (taken < most) {
    const auto rows = static_cast<std::uint32_t>(parts[taken].tokens.size());
    Result<void> reserved = parts[taken].sequence->reserve(rows);
    if (!reserved.ok()) {
      parts[taken].sequence->abort();
      const bool may_wait = reserved.error().code == ErrorCode::out_of_budget ||
                            reserved.error().code == ErrorCode::page_lost;
      if (taken > 0 && may_wait) break;
      for (std::size_t i = 0; i < taken; ++i) parts[i].sequence->abort();
      return std::move(reserved).error();
    }
    ++taken;
  }
  const auto share = store_->stream_slots() / static_cast<std::uint32_t>(taken);
  for (std::size_t i = 0; i < taken; ++i) parts[i].sequence->start(share);
  return taken;
}

Result<std::size_t> Runtime::step(std::span<const StepPart> parts, const BatchLogits& on_logits) {
  std::uint32_t rebuilds_left = 0;
  for (const StepPart& part : parts) {
    rebuilds_left += 2 * part.sequence->table().blocks() * part.sequence->table().layers();
  }
  HEADRACE_CHECK(parts.size() == 1 || !parts.front().drops_rows, "one sequence guesses at a time");
  std::uint32_t last_row = 0;
  const BatchLogits note_row = [&](std::size_t part, std::uint32_t row, const float* logits) {
    last_row = row;
    return on_logits(part, row, logits);
  };
  while (true) {
    const Result<std::size_t> begun = begin(parts);
    if (!begun.ok()) {
      if (begun.error().code != ErrorCode::page_lost) return begun.error();
      HEADRACE_TRY(restore(*parts.front().sequence));
      continue;
    }
    const std::size_t taken = *begun;
    std::vector<Segment> segments;
    for (const StepPart& part : parts.first(taken)) {
      segments.push_back({part.sequence, part.tokens,
                          static_cast<std::uint32_t>(part.sequence->tokens().size()),
                          part.first_logits_row, 0});
    }
    const std::chrono::nanoseconds start = env_.now();
    Result<void> outcome = forward_->run(segments, note_row);
    if (outcome.ok()) {
      if (parts.size() == 1) note_compute_cost(segments.front(), start);
      for (const StepPart& part : parts.first(taken)) {
        part.sequence->commit(part.drops_rows ? part.tokens.first(last_row + 1) : part.tokens);
      }
      store_->tidy_up();
      return taken;
    }
    for (const StepPart& part : parts.first(taken)) part.sequence->abort();
    if (outcome.error().code != ErrorCode::page_lost) return std::move(outcome).error();
    for (const StepPart& part : parts.first(taken)) {
      if (!part.sequence->lost()) continue;
      HEADRACE_TRY(replay(*part.sequence, *part.sequence->lost(), rebuilds_left));
    }
  }
}

/// Of prompt chunks: what the fill planner compares loading with.
void Runtime::note_compute_cost(const Segment& segment, std::chrono::nanoseconds start) {
  constexpr std::size_t least_rows = 64;
  if (segment.tokens.size() < least_rows) return;
  store_->costs().measure_compute(segment.first_position,
                                  static_cast<std::uint32_t>(segment.tokens.size()),
                                  std::chrono::duration<double>(env_.now() - start).count());
}

Result<void> Runtime::replay(SequenceCache& sequence, const PagePlace& lost,
                             std::uint32_t& rebuilds_left) {
  // Many more of them in one step than there are pages: the place cannot keep them.
  if (rebuilds_left == 0) {
    return Error{
        ErrorCode::io,
        "KV pages are damaged as fast as they are rebuilt; give another place with --kv-disk"};
  }
  --rebuilds_left;
  if (!sequence.can_replay(lost)) {
    if (sequence.table().block(lost.block).is_private) {
      return Error{
          ErrorCode::io,
          "a KV page that was computed from a part of the tokens is lost, and cannot be "
          "computed from all of them; read the text anew, and look at the place of --kv-disk"};
    }
    Result<void> outcome = rebuild(sequence, lost);
    if (outcome.ok() || outcome.error().code != ErrorCode::page_lost) return outcome;
    return replay(sequence, lost, rebuilds_left);
  }
  // A replay reads the blocks before its own. If one of those is lost too it is rebuilt first, so
  // blocks only get earlier.
  while (true) {
    std::optional<PagePlace> earlier;
    {
      Replay replay(sequence, lost);
      const BreakOffOnThrow guard(*store_);
      const Segment segment{&replay, replay.tokens(), replay.first_position(),
                            sequence.shape().tokens, replay.layers_end()};
      const std::chrono::nanoseconds start = env_.now();
      Result<void> outcome =
          forward_->run(segment, [](std::uint32_t, const float*) { return true; });
      if (outcome.ok()) {
        note_recomputed(segment.tokens.size(), start);
        return replay.finish();
      }
      if (outcome.error().code != ErrorCode::page_lost) return outcome;
      earlier = replay.lost_earlier();
    }
    HEADRACE_TRY(this->replay(sequence, *earlier, rebuilds_left));
  }
}

Result<void> Runtime::rebuild(SequenceCache& sequence, const PagePlace& lost,
                              std::uint32_t blocks_there) {
  Rebuild rebuild(sequence, lost, blocks_there);
  const BreakOffOnThrow guard(*store_);
  SequenceCache& copy = rebuild.sequence();
  const std::span<const TokenId> tokens = rebuild.tokens();
  const std::chrono::nanoseconds start = env_.now();
  const std::size_t first = copy.tokens().size();
  for (std::size_t done = first; done < tokens.size();) {
    const std::uint32_t rows = rows_possible(copy, tokens.size() - done);
    const std::span<const TokenId> step = tokens.subspan(done, rows);
    HEADRACE_TRY(copy.begin(rows));
    const Segment segment{&copy, step, static_cast<std::uint32_t>(done), rows, 0};
    HEADRACE_TRY(forward_->run(segment, [](std::uint32_t, const float*) { return true; }));
    copy.commit(step);
    done += rows;
  }
  note_recomputed(tokens.size() - first, start);
  return rebuild.finish();
}

Result<void> Runtime::restore(SequenceCache& sequence) {
  const std::optional<SequenceCache::Missing> missing = sequence.missing_blocks();
  HEADRACE_CHECK(missing.has_value(), "a step said that pages are nowhere");
  // Layers with windows have let go of what a block in the middle was computed from.
  const std::uint32_t blocks_there = store_->options().has_windows() ? 0 : missing->first;
  return rebuild(sequence, {0, missing->last}, blocks_there);
}

void Runtime::note_recomputed(std::size_t tokens, std::chrono::nanoseconds start) {
  KvStats& counters = store_->counters();
  ++counters.recomputations;
  counters.recomputed_tokens += tokens;
  counters.recompute_seconds += std::chrono::duration<double>(env_.now() - start).count();
}

}  // namespace headrace
