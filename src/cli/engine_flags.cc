#include "cli/engine_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/bytes.h"
#include "policy/token_weights.h"

namespace headrace {

Result<DiskPlace> parse_disk_place(std::string_view text) {
  DiskPlace place = {.directory = std::string(text)};
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    const Result<std::uint64_t> bytes = parse_byte_count(text.substr(colon + 1));
    if (bytes.ok()) place = {.directory = std::string(text.substr(0, colon)), .bytes = *bytes};
  }
  if (place.directory.empty()) {
    return Error{
        ErrorCode::invalid_argument,
        "--kv-disk needs a directory, for example --kv-disk /tmp/kv or --kv-disk /tmp/kv:20GiB"};
  }
  return place;
}

namespace {

template <typename Values>
std::string names_of(const Values& values) {
  std::string names;
  for (const auto value : values) names.append(names.empty() ? "" : ", ").append(to_string(value));
  return names;
}

/// The one of `values`, each a `what`, with this name.
template <typename Values>
auto parse_name(const Values& values, std::string_view what, std::string_view name)
    -> Result<std::remove_cvref_t<decltype(values[0])>> {
  for (const auto value : values) {
    if (name == to_string(value)) return value;
  }
  std::string message = "there is no ";
  message.append(what).append(" '").append(name).append("'; there are ").append(names_of(values));
  return Error{ErrorCode::invalid_argument, std::move(message)};
}

}  // namespace

std::string kv_type_names() { return names_of(kv_types); }

Result<KvType> parse_kv_type(std::string_view name) {
  return parse_name(kv_types, "KV type", name);
}

Result<AttentionMode> parse_attention_mode(std::string_view name) {
  return parse_name(attention_modes, "attention mode", name);
}

void add_session_option(CLI::App& command, std::string& session) {
  command
      .add_option("--session", session,
                  "Go on with the conversation of this name, and save it in --kv-disk after every "
                  "answer")
      ->type_name("NAME");
}

void EngineFlags::add_to(CLI::App& command, std::uint32_t context) {
  options_.context = context;
  const std::string context_default = context == 0 ? "default: what the model was trained for"
                                                   : "default: " + std::to_string(context);
  command.add_option("-m,--model", options_.model_path, "The model, a GGUF file")
      ->required()
      ->type_name("FILE");

  const std::string group = "Context and memory";
  command
      .add_option("--context", options_.context,
                  "Most tokens that prompt and answer may have (" + context_default + ")")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--kv-memory", kv_memory_,
                  "Limit for the keys and values held in memory, such as 64MiB; the rest goes to "
                  "disk and the answer "
                  "stays the same (default: no limit)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--kv-disk", kv_disk_,
                  "Where pages go that do not fit, and how much room they may take there. What is "
                  "read stays there, and a later run that begins with the same text starts from it "
                  "(default: the temporary directory, and nothing stays)")
      ->type_name("DIR[:SIZE]")
      ->group(group);
  command
      .add_flag("--kv-keep,!--no-kv-keep", keep_,
                "Whether what is in --kv-disk stays for later runs (default: it does)")
      ->group(group);
  command
      .add_flag("--kv-write-through", options_.kv.write_through,
                "Write pages as soon as they are full, not when their room is needed")
      ->group(group);
  command
      .add_option("--kv-disk-io", disk_io_,
                  "buffered (through the system's cache, default) or direct (past it)")
      ->check(CLI::IsMember({"buffered", "direct"}))
      ->type_name("HOW")
      ->group(group);
  command
      .add_option("--kv-disk-codec", options_.kv.disk_codec,
                  "How pages are kept on disk: raw (default) or lossless (smaller)")
      ->type_name("CODEC")
      ->group(group);
  command
      .add_option(
          "--kv-host-percent", options_.kv.host_percent,
          "Percent of --kv-memory for pages that are kept encoded in memory before the rest "
          "goes to disk; with --kv-type q8, whose pages do not become smaller, it changes nothing "
          "(default: 0)")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--kv-host-codec", options_.kv.host_codec,
                  "How those are kept: lossless (default) or raw")
      ->type_name("CODEC")
      ->group(group);
  command
      .add_option("--kv-prefetch", options_.kv.prefetch,
                  "Whether what may follow a text that was found is loaded ahead: off (default), "
                  "conservative, aggressive or learned")
      ->type_name("HOW")
      ->group(group);
  command
      .add_option(
          "--kv-policy", options_.kv.policy,
          "Which blocks that no text uses leave first: lru, fifo, s3fifo, lrfu, cost or auto "
          "(default: cost with --kv-disk, else lru)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--kv-type", kv_type_,
                  "How keys and values are kept: " + kv_type_names() +
                      " (default: " + to_string(KvOptions().type) + ")")
      ->check([](const std::string& name) {
        return parse_kv_type(name).ok() ? "" : parse_kv_type(name).error().message;
      })
      ->type_name("TYPE")
      ->group(group);
  command
      .add_option(
          "--kv-codec", options_.kv.codec,
          "How full blocks of keys and values are encoded: raw and lossless keep every bit, "
          "q8, k8v4 and q4 are smaller and change the answer, map:FILE does as the precision map "
          "in that file says, hidden-q8, hidden-f16 and hidden-f32 keep what keys and values are "
          "computed from again (default: raw)")
      ->type_name("CODEC")
      ->group(group);
  command
      .add_option("--kv-evicted", options_.kv.evicted,
                  "What becomes of keys and values that leave memory: demote (they go to disk, "
                  "default) or recipe (they are dropped, and computed again when they are needed)")
      ->type_name("HOW")
      ->group(group);
  command
      .add_option("--block-tokens", options_.kv.tokens_per_block,
                  "Tokens of a block, the unit that moves to disk and back; a multiple of 16 "
                  "(default: 256)")
      ->type_name("N")
      ->group(group);

  add_attention_to(command);

  const std::string speed = "Speed (never changes the answer)";
  command.add_option("--threads", options_.threads, "Threads that compute (default: one per core)")
      ->type_name("N")
      ->group(speed);
  command
      .add_option("--chunk", options_.chunk_tokens, "Most prompt tokens of one step (default: 512)")
      ->type_name("N")
      ->group(speed);
}

void EngineFlags::add_attention_to(CLI::App& command) {
  const std::string group = "Attention";
  AttentionOptions& attention = options_.attention;
  command
      .add_option("--attention", attention_,
                  "What a step that draws a token reads: exact (everything, default); less, which "
                  "is faster and changes the answer: recall (the tokens that matter most), window "
                  "(the first and the newest ones) or sparse (those, a sample of the rest, and "
                  "what earlier steps gave most attention to)")
      ->check([](const std::string& name) {
        const Result<AttentionMode> mode = parse_attention_mode(name);
        return mode.ok() ? "" : mode.error().message;
      })
      ->type_name("MODE")
      ->group(group);
  const auto add = [&](std::vector<AttentionMode> modes, const char* name, auto& value,
                       const std::string& description, const char* type_name) {
    CLI::Option* const option =
        command.add_option(name, value, description)->type_name(type_name)->group(group);
    only_in(std::move(modes), option);
    return option;
  };
  using enum AttentionMode;
  add({recall}, "--recall-tokens", attention.recall_tokens,
      "Most tokens that recall reads of a layer for each kv head (default: 2048)", "N");
  add({recall}, "--recall-mass", attention.recall_mass,
      "Share of a layer's attention at which recall reads no more (default: 1)", "P");
  add({recall}, "--recall-share", attention.recall_share,
      "Share of a layer's attention from which on recall reads 4 tokens, and for which it reads 4 "
      "of a sample of the others (default: 0.001; 0: any)",
      "S");
  add({recall}, "--recall-group", attention.recall_group,
      "Neighbouring tokens that recall chooses together: 4 (default), 8 or 16", "N");
  add({recall}, "--recall-choice", recall_choice_,
      "Who chooses in recall: each kv head (head, default), or all of a layer together (layer), so "
      "that fewer tokens must be in memory at once",
      "WHO")
      ->check(CLI::IsMember({"head", "layer"}));
  add({recall}, "--recall-load-tokens", attention.recall_load_tokens,
      "Most tokens of a layer that a step of recall brings back into memory; the others wait, "
      "unread, for the next step (default: 0, no limit)",
      "N");
  only_where_a_part_is_read(
      command
          .add_flag("--certify", attention.certify,
                    "Measures what each step left out, and how far its attention is from exact: "
                    "the answer is the same, and each step takes longer than an exact one")
          ->group(group));
  add({recall, window, sparse}, "--recall-first", attention.recall_first,
      "Tokens at the beginning that recall, window and sparse always read (default: 16)", "N");
  add({recall}, "--retain-first", attention.retain_first,
      "Tokens at the beginning that are the last to leave memory in recall (default: 128)", "N");
  only_in({recall},
          command
              .add_flag("--weigh-tokens", weighs_tokens_,
                        "In recall names, digits, rare and control tokens leave memory later than "
                        "their attention alone says")
              ->group(group));
  add({window}, "--window-tokens", attention.window_tokens,
      "Newest tokens that window reads of a layer (default: 1008)", "N");
  add({window}, "--window-positions", window_positions_,
      "How far the first tokens seem to be: as they are (true, default), or as if the newest ones "
      "followed them (packed), so that --context may be more than the model was trained for",
      "HOW")
      ->check(CLI::IsMember({"true", "packed"}));
  add({sparse}, "--sparse-tokens", attention.sparse_tokens,
      "Most tokens that sparse reads of a layer for each kv head: the first ones, those of the two "
      "parts that follow, and the newest ones (default: 1024)",
      "N");
  add({sparse}, "--sparse-sample", attention.sparse_sample,
      "Part of them for a sample of older tokens at even distances (default: 0.2)", "P");
  add({sparse}, "--sparse-heavy", attention.sparse_heavy,
      "Part of them for the older tokens that earlier steps gave most attention to (default: 0.4)",
      "P");
}

/// An option of another mode would change nothing, and whoever gave it thinks that it does.
Result<void> EngineFlags::check_mode_options(AttentionMode mode) const {
  for (const ModeOption& own : mode_options_) {
    if (own.option->count() == 0 || std::ranges::find(own.modes, mode) != own.modes.end()) continue;
    const std::string name = own.option->get_name();
    std::string modes;
    for (const AttentionMode other : own.modes)
      modes.append(modes.empty() ? "" : " or ").append(to_string(other));
    std::string message = name;
    message.append(" changes nothing with --attention ").append(to_string(mode));
    message.append("; give --attention ").append(modes).append(", or leave ").append(name);
    return Error{ErrorCode::invalid_argument, message.append(" out")};
  }
  return {};
}

Result<EngineOptions> EngineFlags::options() const {
  EngineOptions options = options_;
  if (!attention_.empty()) {
    HEADRACE_TRY_ASSIGN(options.attention.mode, parse_attention_mode(attention_));
  }
  HEADRACE_TRY(check_mode_options(options.attention.mode));
  options.attention.recall_by_layer = recall_choice_ == "layer";
  options.attention.window_packed = window_positions_ == "packed";
  options.kv.disk_direct = disk_io_ == "direct";
  if (weighs_tokens_) options.token_weights = new_token_weights();
  options.sequences = 1;  // every command works on one at a time
  if (!kv_type_.empty()) {
    HEADRACE_TRY_ASSIGN(options.kv.type, parse_kv_type(kv_type_));
  }
  if (!kv_memory_.empty()) {
    const Result<std::uint64_t> bytes = parse_byte_count(kv_memory_);
    if (!bytes.ok())
      return Error{ErrorCode::invalid_argument, "--kv-memory: " + bytes.error().message};
    if (*bytes == 0) {
      return Error{ErrorCode::invalid_argument,
                   "--kv-memory is 0; leave it out for no limit, or give it a size"};
    }
    options.kv.memory_bytes = *bytes;
  }
  if (!kv_disk_.empty()) {
    HEADRACE_TRY_ASSIGN(const DiskPlace place, parse_disk_place(kv_disk_));
    options.kv.disk_directory = place.directory;
    options.kv.keep_disk = keep_;
    options.kv.disk_bytes = place.bytes;
  }
  return options;
}

}  // namespace headrace
