// EngineFlags: the options that every command which opens an engine has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/options.h"
#include "headrace/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): a library's
class App;
class Option;
}  // namespace CLI

namespace headrace {

/// Where pages go that do not fit, as written after --kv-disk.
struct DiskPlace {
  std::string directory;
  std::uint64_t bytes = 0;  ///< 0: no limit of its own
};

/// Reads "DIR" or "DIR:SIZE". The last colon is a separator only if an amount of bytes follows it,
/// so directories with colons work. Errors: invalid_argument.
Result<DiskPlace> parse_disk_place(std::string_view text);

/// "f32, f16, ...": what --kv-type takes.
std::string kv_type_names();
/// Errors: invalid_argument, with the names that there are.
Result<KvType> parse_kv_type(std::string_view name);

/// What --attention takes. Errors: invalid_argument, with the names that there are.
Result<AttentionMode> parse_attention_mode(std::string_view name);

/// --session NAME.
void add_session_option(CLI::App& command, std::string& session);

class EngineFlags {
 public:
  /// `context`: the default of --context. Must outlive the parsing.
  void add_to(CLI::App& command, std::uint32_t context);
  /// The option is one of these modes of --attention: options() refuses it with others.
  void only_in(std::vector<AttentionMode> modes, const CLI::Option* option) {
    mode_options_.push_back({option, std::move(modes)});
  }
  /// The option is of those modes whose steps read a part of the tokens.
  void only_where_a_part_is_read(const CLI::Option* option) {
    only_in({AttentionMode::recall, AttentionMode::window, AttentionMode::sparse}, option);
  }
  /// The options that the parsed flags mean. Errors: invalid_argument.
  Result<EngineOptions> options() const;

 private:
  /// An option of some modes of --attention.
  struct ModeOption {
    const CLI::Option* option;
    std::vector<AttentionMode> modes;
  };

  void add_attention_to(CLI::App& command);
  Result<void> check_mode_options(AttentionMode mode) const;

  EngineOptions options_;
  std::vector<ModeOption> mode_options_;
  std::string kv_memory_;
  std::string kv_disk_;
  std::string kv_type_;
  std::string disk_io_;
  std::string attention_;
  std::string recall_choice_;
  std::string window_positions_;
  bool keep_ = true;
  bool weighs_tokens_ = false;
};

}  // namespace headrace
