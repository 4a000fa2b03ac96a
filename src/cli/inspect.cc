#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/figures.h"

namespace headrace {
namespace {

constexpr const char* footer =
    "Examples:\n"
    "  headrace inspect model.gguf\n"
    "  headrace inspect model.gguf --context 32768\n"
    "  headrace inspect model.gguf --json | jq .kv_bytes_per_token.f16";

struct InspectFlags {
  std::string model;
  std::uint32_t context = 0;
  bool json = false;
};

struct Inspection {
  ModelInfo model;
  std::uint32_t context = 0;
  std::uint64_t memory_bytes = 0;  // of this machine

  std::uint64_t kv_bytes(KvType type) const { return model.kv_bytes(type, context); }
  // Tokens whose keys and values fit beside the weights.
  std::uint64_t tokens_that_fit(KvType type) const {
    const std::uint64_t left =
        memory_bytes > model.file_bytes ? memory_bytes - model.file_bytes : 0;
    const std::uint64_t per_token = model.kv_bytes_per_token(type);
    if (per_token == 0) return 0;
    if (left <= model.kv_bytes(type, model.window)) return left / per_token;
    // Beyond the window only the other layers grow.
    const std::uint64_t growing = model.layers - model.window_layers;
    if (growing == 0) return model.trained_context;
    return model.window +
           (left - model.kv_bytes(type, model.window)) / (growing * model.kv_bytes_per_layer(type));
  }
};

std::string format_parameters(std::uint64_t parameters) {
  return parameters >= 10'000'000'000 ? format_count(parameters / 1'000'000'000) + " billion"
                                      : format_count(parameters / 1'000'000) + " million";
}

// Without the space, so that it can be pasted.
std::string as_option(std::uint64_t bytes) {
  std::string size = format_byte_count(bytes);
  std::erase(size, ' ');
  return "--kv-memory " + size;
}

void print_tables(std::ostream& out, const Inspection& inspection) {
  const ModelInfo& model = inspection.model;
  out << model.name << " (" << model.architecture << ")\n";
  Table geometry;
  geometry.row("file", format_byte_count(model.file_bytes) + ", " +
                           format_parameters(model.parameters) + " parameters");
  geometry.row("layers", format_count(model.layers));
  geometry.row("hidden width", format_count(model.embedding));
  geometry.row("heads", format_count(model.query_heads) + " query, " +
                            format_count(model.kv_heads) + " key/value, " +
                            format_count(model.head_dim) + " wide");
  geometry.row("feed-forward", format_count(model.feed_forward));
  geometry.row("vocabulary", format_count(model.vocabulary));
  geometry.row("trained context", format_count(model.trained_context) + " tokens");
  if (model.window_layers > 0) {
    geometry.row("sliding window", format_count(model.window) + " tokens in " +
                                       format_count(model.window_layers) + " of " +
                                       format_count(model.layers) + " layers");
  }
  geometry.row("chat template", model.has_chat_template ? "yes" : "no");
  for (const auto& [type, bytes] : model.tensor_bytes_by_type) {
    geometry.row("weights in " + type, format_byte_count(bytes));
  }
  geometry.print(out);

  for (const KvType type : kv_types) {
    const std::uint64_t bytes = inspection.kv_bytes(type);
    out << "Keys and values in " << to_string(type) << "\n";
    Table kv;
    kv.row("a token", format_byte_count(model.kv_bytes_per_token(type)));
    kv.row(format_count(inspection.context) + " tokens", format_byte_count(bytes));
    kv.row("half in memory", as_option(bytes / 2));
    kv.row("an eighth", as_option(bytes / 8));
    kv.row("fits this machine", format_count(inspection.tokens_that_fit(type)) +
                                    " tokens beside the weights (" +
                                    format_byte_count(inspection.memory_bytes) + " of memory)");
    kv.print(out);
  }
}

std::string to_json(const Inspection& inspection, const std::string& path) {
  const ModelInfo& model = inspection.model;
  nlohmann::ordered_json weights = nlohmann::ordered_json::object();
  for (const auto& [type, bytes] : model.tensor_bytes_by_type) weights[type] = bytes;
  nlohmann::ordered_json per_token, needed, fits;
  for (const KvType type : kv_types) {
    const std::uint64_t bytes = inspection.kv_bytes(type);
    per_token[to_string(type)] = model.kv_bytes_per_token(type);
    needed[to_string(type)] = {{"full", bytes}, {"half", bytes / 2}, {"eighth", bytes / 8}};
    fits[to_string(type)] = inspection.tokens_that_fit(type);
  }
  const nlohmann::ordered_json json = {
      {"model", path},
      {"name", model.name},
      {"architecture", model.architecture},
      {"file_bytes", model.file_bytes},
      {"parameters", model.parameters},
      {"layers", model.layers},
      {"embedding", model.embedding},
      {"query_heads", model.query_heads},
      {"kv_heads", model.kv_heads},
      {"head_dim", model.head_dim},
      {"feed_forward", model.feed_forward},
      {"vocabulary", model.vocabulary},
      {"trained_context", model.trained_context},
      {"window", model.window},
      {"window_layers", model.window_layers},
      {"has_chat_template", model.has_chat_template},
      {"tensor_bytes_by_type", weights},
      {"kv_bytes_per_token", per_token},
      {"context", inspection.context},
      {"kv_bytes_needed", needed},
      {"machine_memory_bytes", inspection.memory_bytes},
      {"tokens_that_fit", fits},
  };
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int inspect(const InspectFlags& flags, CommandContext& context) {
  const Result<ModelInfo> model = context.inspect_model(flags.model);
  if (!model.ok()) return report_error(context.err, model.error(), Phase::opening);
  const Inspection inspection = {
      .model = *model,
      .context = flags.context != 0 ? flags.context : model->trained_context,
      .memory_bytes = context.env.physical_memory_bytes(),
  };
  if (inspection.context > model->trained_context) {
    context.err << "headrace: note: the model was trained for "
                << format_count(model->trained_context) << " tokens; this is arithmetic only\n";
  }
  if (flags.json) {
    context.out << to_json(inspection, flags.model) << std::endl;
  } else {
    print_tables(context.out, inspection);
  }
  return exit_ok;
}

}  // namespace

Command add_inspect(CLI::App& program) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = program.add_subcommand(
      "inspect", "What a model is made of, and how much memory a context needs");
  command->add_option("model,-m,--model", flags->model, "A GGUF file")
      ->required()
      ->type_name("MODEL");
  command
      ->add_option("--context", flags->context,
                   "Tokens to calculate for (default: the trained context)")
      ->type_name("N");
  command->add_flag("--json", flags->json, "One JSON object on stdout");
  command->footer(footer);
  return {command, [flags](CommandContext& context) { return inspect(*flags, context); }};
}

}  // namespace headrace
