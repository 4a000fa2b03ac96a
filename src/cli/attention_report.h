// What steps that read a part of the tokens came to, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/figures.h"
#include "headrace/engine.h"

namespace headrace {

/// What was read, left out and found in memory; nothing where every step read everything.
void add_attention_rows(Table& table, AttentionMode mode, const KvStats& kv);
/// Null: not measured.
nlohmann::ordered_json attention_json(AttentionMode mode, const KvStats& kv);

}  // namespace headrace
