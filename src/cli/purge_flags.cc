#include "cli/purge_flags.h"

#include <CLI/CLI.hpp>
#include <string>

namespace headrace {

void PurgeFlags::add_to(CLI::App& command, EngineFlags& engine) {
  const std::string group = "Attention";
  CLI::Option* const turns =
      command.add_option("--purge-every", every,
                         "After so many answers, such as 10, the keys and values that got least "
                         "attention leave memory, until a step reads them (default: 0, never)");
  // A step of exact attention would bring all of it back.
  engine.only_where_a_part_is_read(turns->type_name("N")->group(group));
  CLI::Option* const share =
      command.add_option("--purge-keep", options.keep_ratio,
                         "Share of the keys and values in memory that stays there (default: 0.7)");
  share->check(CLI::Range(0.0, 1.0))->type_name("P")->group(group)->needs(turns);
  CLI::Option* const topic = command.add_flag(
      "--topic-shift", topic_shift,
      "When what is said seems to begin a new topic, the keys and values of the one before leave "
      "memory, until a step reads them");
  engine.only_where_a_part_is_read(topic->group(group));
}

Result<void> PurgeFlags::check(const EngineOptions& engine) const {
  if (every == 0 && !topic_shift) return {};
  const std::string name = every > 0 ? "--purge-every" : "--topic-shift";
  if (engine.kv.evicted == "recipe") {
    return Error{ErrorCode::invalid_argument,
                 name +
                     " changes nothing with --kv-evicted recipe, which computes again what "
                     "leaves memory before every step; leave one of them out"};
  }
  if (engine.kv.memory_bytes == 0) {
    return Error{ErrorCode::invalid_argument,
                 name + " needs --kv-memory: without a limit all keys and values stay in memory"};
  }
  return {};
}

}  // namespace headrace
