#include "cli/attention_report.h"

#include "base/bytes.h"

namespace headrace {

void add_attention_rows(Table& table, AttentionMode mode, const KvStats& kv) {
  if (kv.recall_choices > 0) {
    std::string figure = format_fixed(kv.recall_tokens_read, 0) + " tokens read of a layer";
    if (kv.recall_mass_left_out)
      figure += ", " + format_fixed(100 * *kv.recall_mass_left_out, 2) + " % of attention not read";
    table.row(to_string(mode), figure);
  }
  if (kv.recall_groups_read > 0) {
    const double loaded =
        static_cast<double>(kv.recall_groups_loaded) / static_cast<double>(kv.recall_groups_read);
    table.row("in memory", format_fixed(100 - 100 * loaded, 2) + " % of what was read, " +
                               format_byte_count(kv.recall_bytes_loaded) + " loaded in groups");
    if (kv.recall_groups_deferred > 0) {
      table.row("waited", std::to_string(kv.recall_groups_deferred) +
                              " groups for a later step, with up to " +
                              format_fixed(100 * kv.recall_mass_deferred_most, 2) +
                              " % of the attention of a layer");
    }
  }
  if (kv.certified) {
    const auto percent = [](double share) { return format_fixed(100 * share, 2) + " %"; };
    table.row("certified", percent(kv.certified->mass_not_read) +
                               " of attention not read, at most " +
                               percent(kv.certified->mass_not_read_most) + " of a head");
    table.row("", percent(kv.certified->error) + " away from exact, at most " +
                      percent(kv.certified->error_most) + " in a layer");
  }
}

nlohmann::ordered_json attention_json(AttentionMode mode, const KvStats& kv) {
  nlohmann::ordered_json json = {{"mode", to_string(mode)},
                                 {"tokens_read", nullptr},
                                 {"mass_left_out", nullptr},
                                 {"groups_read", kv.recall_groups_read},
                                 {"groups_loaded", kv.recall_groups_loaded},
                                 {"bytes_loaded", kv.recall_bytes_loaded},
                                 {"groups_deferred", kv.recall_groups_deferred},
                                 {"mass_deferred_most", kv.recall_mass_deferred_most},
                                 {"certified", nullptr}};
  if (kv.recall_choices > 0) json["tokens_read"] = kv.recall_tokens_read;
  if (kv.recall_mass_left_out) json["mass_left_out"] = *kv.recall_mass_left_out;
  if (kv.certified) {
    json["certified"] = {{"mass_not_read", kv.certified->mass_not_read},
                         {"mass_not_read_most", kv.certified->mass_not_read_most},
                         {"error", kv.certified->error},
                         {"error_most", kv.certified->error_most}};
  }
  return json;
}

}  // namespace headrace
