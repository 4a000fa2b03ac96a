#include "cli/repetition_report.h"

#include "cli/figures.h"

namespace headrace {

void warn_of_repetitions(std::ostream& out, std::span<const Repetition> repetitions) {
  if (repetitions.empty()) return;
  std::uint64_t tokens = 0;
  for (const Repetition& repetition : repetitions) tokens += repetition.tokens;
  out << "headrace: warning: the text repeats a few tokens again and again, from token "
      << format_count(repetitions.front().first_token) << " on, " << format_count(tokens)
      << " in all; none of them stands out, so answers may be poor and memory badly used"
      << std::endl;
}

nlohmann::ordered_json repetitions_json(std::span<const Repetition> repetitions) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Repetition& repetition : repetitions) {
    json.push_back({{"first_token", repetition.first_token},
                    {"tokens", repetition.tokens},
                    {"period", repetition.period}});
  }
  return json;
}

}  // namespace headrace
