// What the commands say about text that defeats the cache (policy/repetition.h).
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <span>

#include "policy/repetition.h"

namespace headrace {

/// One line, if there is anything to warn of.
void warn_of_repetitions(std::ostream& out, std::span<const Repetition> repetitions);

/// [{"first_token", "tokens", "period"}]
nlohmann::ordered_json repetitions_json(std::span<const Repetition> repetitions);

}  // namespace headrace
