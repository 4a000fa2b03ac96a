#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/prompt_text.h"
#include "cli/score_text.h"
#include "cli/text_grid.h"
#include "env/scratch_directory.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Reads the first --context tokens of the text once for K and once for V of each head of each\n"
    "layer, with that one in 4 bits and all else as it is, and then gives bits to those that lost\n"
    "most. What the map as a whole loses is measured with the next --context tokens.\n"
    "\n"
    "Weights of few bits round their inputs, which hides what one head loses. Calibrate with the\n"
    "F16, BF16 or F32 file of a model, and name the one that you run with --for.\n"
    "\n"
    "Examples:\n"
    "  headrace calibrate -m model.gguf -f book.txt --out model.map --bits 6\n"
    "  headrace calibrate -m model-f16.gguf --for model.gguf -f book.txt --out model.map\n"
    "  headrace run -m model.gguf -f book.txt -p \"Who is the narrator?\" --kv-codec map:model.map";

struct CalibrateFlags {
  EngineFlags engine;
  std::string file, out, target;
  double bits = 6;
  double kl = 0;
  std::uint32_t last_tokens = 256;
  bool json = false;
};

/// A codec and what it costs.
struct Measured {
  std::string name;
  double bits = 0;  ///< a value
  double kl = 0;
  double same_top1 = 0;
};

struct Calibration {
  PrecisionMap map;
  std::vector<HeadLoss> losses;    ///< [layer][kv head]
  std::vector<Measured> measured;  ///< the map first
  double noise = 0;                ///< KL of a change that should not matter
};

/// Bits a value of a codec whose first four layers are finer (docs/formats/codecs.md).
double bits_of_codec(HeadPrecision usual, std::uint32_t layers) {
  const double fine = std::min(layers, 4U);
  const double bits = (bits_of(usual.key) + bits_of(usual.value)) / 2;
  return (fine * bits_of(Precision::q8) + (layers - fine) * bits) / layers;
}

class Calibrator {
 public:
  Calibrator(CommandContext& context, const CalibrateFlags& flags, EngineOptions options,
             const ScratchDirectory& scratch)
      : context_(context),
        flags_(flags),
        options_(std::move(options)),
        map_path_(scratch.file("map")),
        progress_(context, "calibrating") {}

  Result<Calibration> run(const std::string& text) {
    options_.kv.codec = KvOptions().codec;
    HEADRACE_TRY_ASSIGN(full_, context_.open_engine(options_));
    HEADRACE_TRY_ASSIGN(tokens_, full_->tokenize(text, {}));
    chunk_tokens_ = full_->context();
    HEADRACE_TRY(check_lengths());
    const ModelInfo& model = full_->model();
    Calibration result;
    PrecisionMap& map = result.map;
    map.model = full_->model_digest();
    HEADRACE_TRY_ASSIGN(const std::string target, digest_of_target());
    map.kv_heads = model.kv_heads;
    map.heads.resize(std::size_t{model.layers} * model.kv_heads);
    constexpr std::uint64_t runs_to_compare = 5;
    const std::uint64_t runs_to_search = flags_.kl > 0 ? 10 : 0;
    runs_total_ = 2 * map.heads.size() + runs_to_search + runs_to_compare;

    PrecisionMap nearly_raw = map;
    nearly_raw.heads[0].key = Precision::q8;
    HEADRACE_TRY_ASSIGN(result.noise, kl_of(nearly_raw));
    HEADRACE_TRY(measure_heads(map, result.losses));
    const std::vector<Refinement> refinements = order_refinements(result.losses);
    std::size_t count = refinements_within(flags_.bits, map, refinements);
    if (flags_.kl > 0) {
      HEADRACE_TRY_ASSIGN(count, refinements_for_kl(map, refinements));
    }
    map = refine(map, refinements, count);

    const auto compare = [&](const std::string& name, const std::string& codec,
                             double bits) -> Result<void> {
      HEADRACE_TRY_ASSIGN(const Score score,
                          measure(codec, std::span(tokens_).subspan(chunk_tokens_)));
      result.measured.push_back({name, bits, score.kl_mean(), score.same_top1()});
      return {};
    };
    HEADRACE_TRY(write_file(context_.env, map_path_, to_text(map)));
    HEADRACE_TRY(compare("the map", "map:" + map_path_, map.mean_bits()));
    constexpr HeadPrecision q8 = {Precision::q8, Precision::q8};
    constexpr HeadPrecision k8v4 = {Precision::q8, Precision::q4};
    constexpr HeadPrecision q4 = {Precision::q4, Precision::q4};
    HEADRACE_TRY(compare("q8", "q8", bits_of_codec(q8, model.layers)));
    HEADRACE_TRY(compare("k8v4", "k8v4", bits_of_codec(k8v4, model.layers)));
    HEADRACE_TRY(compare("q4", "q4", bits_of_codec(q4, model.layers)));
    progress_.finish();
    map.model = target;
    return result;
  }

 private:
  /// The file that the map is for has another digest than the one that is measured.
  Result<std::string> digest_of_target() const {
    if (flags_.target.empty()) return full_->model_digest();
    EngineOptions options = options_;
    options.model_path = flags_.target;
    HEADRACE_TRY_ASSIGN(const auto target, context_.open_engine(options));
    const ModelInfo& model = full_->model();
    const ModelInfo& other = target->model();
    if (other.layers != model.layers || other.kv_heads != model.kv_heads ||
        other.head_dim != model.head_dim) {
      return Error{ErrorCode::invalid_argument,
                   "'" + flags_.target +
                       "' has other layers or heads than the model that is measured; give --for a "
                       "file of the same model"};
    }
    return target->model_digest();
  }

  Result<void> check_lengths() const {
    const std::uint32_t block = options_.kv.tokens_per_block;
    if (flags_.last_tokens < 2 || chunk_tokens_ < std::uint64_t{flags_.last_tokens} + block) {
      return Error{
          ErrorCode::invalid_argument,
          "--context " + std::to_string(chunk_tokens_) + " must have room for a block of " +
              std::to_string(block) + " tokens and the " + std::to_string(flags_.last_tokens) +
              " of --last, at least 2; give a larger --context or a smaller --block-tokens"};
    }
    if (tokens_.size() < 2 * chunk_tokens_) {
      return Error{ErrorCode::invalid_argument,
                   "the text has " + format_count(tokens_.size()) +
                       " tokens, and calibrating takes twice --context, " +
                       format_count(2 * chunk_tokens_) + "; give it a longer text"};
    }
    return {};
  }

  Result<void> measure_heads(const PrecisionMap& finest, std::vector<HeadLoss>& losses) {
    losses.resize(finest.heads.size());
    for (std::size_t head = 0; head < losses.size(); ++head) {
      PrecisionMap map = finest;
      map.heads[head].key = Precision::q4;
      HEADRACE_TRY_ASSIGN(losses[head].key, kl_of(map));
      map.heads[head] = {Precision::raw, Precision::q4};
      HEADRACE_TRY_ASSIGN(losses[head].value, kl_of(map));
    }
    return {};
  }

  /// The fewest with which the map loses no more than asked for.
  Result<std::size_t> refinements_for_kl(const PrecisionMap& map,
                                         std::span<const Refinement> refinements) {
    std::size_t least = 0;
    std::size_t most = refinements.size();  // loses nothing
    while (least < most) {
      const std::size_t count = least + (most - least) / 2;
      HEADRACE_TRY_ASSIGN(const double kl, kl_of(refine(map, refinements, count)));
      if (kl <= flags_.kl) {
        most = count;
      } else {
        least = count + 1;
      }
    }
    return most;
  }

  Result<double> kl_of(const PrecisionMap& map) {
    HEADRACE_TRY(write_file(context_.env, map_path_, to_text(map)));
    HEADRACE_TRY_ASSIGN(const Score score, measure("map:" + map_path_, tokens_));
    return score.kl_mean();
  }

  /// Of the first chunk of `tokens`. The engine that quantises nothing has it in its cache.
  Result<Score> measure(const std::string& codec, std::span<const TokenId> tokens) {
    EngineOptions options = options_;
    options.kv.codec = codec;
    HEADRACE_TRY_ASSIGN(const auto tested, context_.open_engine(options));
    const ScoreTextOptions scoring = {
        .chunk_tokens = chunk_tokens_,
        .chunks_max = 1,
        .last_tokens = flags_.last_tokens,
        .now = [&] { return context_.env.now(); },
        .on_progress =
            [&](std::uint64_t done, std::uint64_t) {
              progress_.update(runs_done_ * chunk_tokens_ + done, runs_total_ * chunk_tokens_);
              return !context_.interrupts.pending();
            },
    };
    HEADRACE_TRY_ASSIGN(const TextScore result, score_text(*tested, full_.get(), tokens, scoring));
    ++runs_done_;
    return result.score;
  }

  CommandContext& context_;
  const CalibrateFlags& flags_;
  EngineOptions options_;
  const std::string map_path_;
  Progress progress_;
  std::unique_ptr<Engine> full_;
  std::vector<TokenId> tokens_;
  std::uint32_t chunk_tokens_ = 0;
  std::uint64_t runs_done_ = 0;
  std::uint64_t runs_total_ = 0;
};

std::string format_number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

void print_table(std::ostream& out, const Calibration& calibration) {
  TextGrid grid({"", "bits a value", "mean KL", "same top-1"});
  for (const Measured& measured : calibration.measured) {
    grid.row({measured.name, format_number("%.2f", measured.bits),
              format_number("%.2e", measured.kl),
              format_number("%.2f %%", 100 * measured.same_top1)});
  }
  grid.print(out);
}

/// Whether losses would be as large if nothing but rounding had changed.
bool is_hidden_by_noise(const Calibration& calibration) {
  std::vector<double> losses;
  for (const HeadLoss& loss : calibration.losses) {
    losses.push_back(loss.key);
    losses.push_back(loss.value);
  }
  const auto middle = losses.begin() + static_cast<std::ptrdiff_t>(losses.size() / 2);
  std::ranges::nth_element(losses, middle);
  return 2 * calibration.noise > *middle;
}

std::string to_json(const Calibration& calibration, const std::string& path) {
  nlohmann::ordered_json json = {{"map", path}, {"kl_noise", calibration.noise}};
  for (const Measured& measured : calibration.measured) {
    json["measured"].push_back({{"codec", measured.name},
                                {"bits", measured.bits},
                                {"kl_mean", measured.kl},
                                {"same_top1", measured.same_top1}});
  }
  const std::uint32_t kv_heads = calibration.map.kv_heads;
  for (std::size_t head = 0; head < calibration.losses.size(); ++head) {
    const HeadLoss& loss = calibration.losses[head];
    json["heads"].push_back({{"layer", head / kv_heads},
                             {"head", head % kv_heads},
                             {"kl_key_q4", loss.key},
                             {"kl_value_q4", loss.value}});
  }
  return json.dump();
}

int calibrate(const CalibrateFlags& flags, CommandContext& context) {
  const auto fail = [&](const Error& error, Phase phase) {
    if (context.interrupts.pending()) return context.interrupts.exit_code();
    return report_error(context.err, error, phase);
  };
  const Result<EngineOptions> options = flags.engine.options();
  if (!options.ok()) return fail(options.error(), Phase::opening);
  const Result<std::string> text = read_text_file(context, flags.file);
  if (!text.ok()) return fail(text.error(), Phase::opening);
  const Result<ScratchDirectory> scratch = ScratchDirectory::create(context.env);
  if (!scratch.ok()) return fail(scratch.error(), Phase::running);
  const Result<Calibration> calibration = Calibrator(context, flags, *options, *scratch).run(*text);
  if (!calibration.ok()) return fail(calibration.error(), Phase::opening);
  const Result<void> written = write_file(context.env, flags.out, to_text(calibration->map));
  if (!written.ok()) return fail(written.error(), Phase::running);
  if (is_hidden_by_noise(*calibration)) {
    context.err
        << "headrace: K of one head in 8 bits already gives KL "
        << format_number("%.1e", calibration->noise)
        << ", so rounding hides what heads lose; calibrate with the F16 or F32 file of this "
           "model and --for this one\n";
  }
  print_table(flags.json ? context.err : context.out, *calibration);
  if (flags.json) context.out << to_json(*calibration, flags.out) << std::endl;
  return exit_ok;
}

}  // namespace

Command add_calibrate(CLI::App& program) {
  const auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = program.add_subcommand(
      "calibrate", "Which heads need how many bits: makes a precision map for --kv-codec map:FILE");
  command->add_option("-f,--file", flags->file, "The text to measure with; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--out", flags->out, "Where the map goes")->required()->type_name("FILE");
  command
      ->add_option("--for", flags->target,
                   "The file of the same model that the map is for (default: --model)")
      ->type_name("FILE");
  CLI::Option* bits =
      command->add_option("--bits", flags->bits, "Most bits a value on average (default: 6)")
          ->check(CLI::Range(4.3, 16.0))
          ->type_name("B");
  command
      ->add_option("--kl", flags->kl,
                   "Instead: as few bits as lose at most this mean KL of the first chunk")
      ->check(CLI::PositiveNumber)
      ->excludes(bits)
      ->type_name("X");
  command
      ->add_option("--last", flags->last_tokens,
                   "Score the last N tokens of a chunk (default: 256)")
      ->type_name("N");
  command->add_flag("--json", flags->json,
                    "One JSON object on stdout, with every head's loss; the table goes to stderr");
  flags->engine.add_to(*command, 1024);
  command->get_option("--context")->description("Tokens of a chunk (default: 1024)");
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return calibrate(*flags, context); }};
}

}  // namespace headrace
