#include "codec/precision_map.h"

#include <algorithm>
#include <charconv>
#include <span>

namespace headrace {
namespace {

constexpr std::string_view first_line = "headrace precision map 1";
constexpr std::size_t model_digits = 32;
constexpr std::uint32_t count_most = 4096;  // layers, and heads

std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(" \t\r", at);
    if (begin == std::string_view::npos) break;
    at = std::min(line.find_first_of(" \t\r", begin), line.size());
    words.push_back(line.substr(begin, at - begin));
  }
  return words;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<PrecisionMap> parse() {
    const std::vector<std::string_view> first = next_words();
    std::string joined;
    for (const std::string_view word : first)
      joined += (joined.empty() ? "" : " ") + std::string(word);
    if (joined != first_line) {
      return Error{ErrorCode::invalid_argument,
                   "it does not begin with '" + std::string(first_line) +
                       "', so it is no precision map that this build reads; " + advice};
    }
    PrecisionMap map;
    HEADRACE_TRY_ASSIGN(map.model, field("model"));
    const bool is_digest = map.model.size() == model_digits &&
                           map.model.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!is_digest) return wrong("a model is named by 32 hexadecimal digits");
    HEADRACE_TRY_ASSIGN(const std::uint32_t layers, count("layers"));
    HEADRACE_TRY_ASSIGN(map.kv_heads, count("heads"));
    for (std::uint32_t layer = 0; layer < layers; ++layer) HEADRACE_TRY(read_layer(layer, map));
    if (!next_words().empty()) {
      return wrong("there is more than the " + std::to_string(layers) + " layers that it names");
    }
    return map;
  }

 private:
  static constexpr const char* advice = "make one with headrace calibrate";

  /// Of the next line that has any; none at the end.
  std::vector<std::string_view> next_words() {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      const std::vector<std::string_view> words = words_of(rest_.substr(0, end));
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++line_;
      if (!words.empty()) return words;
    }
    return {};
  }

  Error wrong(const std::string& what) const {
    return {ErrorCode::invalid_argument, "line " + std::to_string(line_) + ": " + what};
  }

  /// A line of a name and a value.
  Result<std::string> field(std::string_view name) {
    const std::vector<std::string_view> words = next_words();
    if (words.size() != 2 || words[0] != name) {
      return wrong("there must be '" + std::string(name) + "' and its value; " + advice);
    }
    return std::string(words[1]);
  }

  Result<std::uint32_t> count(std::string_view name) {
    HEADRACE_TRY_ASSIGN(const std::string text, field(name));
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value == 0 ||
        value > count_most) {
      return wrong(std::string(name) + " '" + text + "' is no number from 1 to " +
                   std::to_string(count_most));
    }
    return value;
  }

  Result<void> read_layer(std::uint32_t layer, PrecisionMap& map) {
    const std::vector<std::string_view> words = next_words();
    const std::string number = std::to_string(layer);
    if (words.empty()) return wrong("layer " + number + " and those after it are missing");
    if (words[0] != number) {
      return wrong("there must be layer " + number + ", not '" + std::string(words[0]) + "'");
    }
    if (words.size() != std::size_t{map.kv_heads} + 1) {
      return wrong("layer " + number + " has " + std::to_string(words.size() - 1) + " heads of " +
                   std::to_string(map.kv_heads));
    }
    for (const std::string_view word : std::span(words).subspan(1)) {
      const std::size_t slash = std::min(word.find('/'), word.size());
      HeadPrecision head;
      HEADRACE_TRY_ASSIGN(head.key, precision(word, word.substr(0, slash)));
      HEADRACE_TRY_ASSIGN(head.value,
                          precision(word, word.substr(std::min(slash + 1, word.size()))));
      map.heads.push_back(head);
    }
    return {};
  }

  Result<Precision> precision(std::string_view head, std::string_view name) const {
    for (const Precision precision : precisions) {
      if (name == to_string(precision)) return precision;
    }
    return wrong("'" + std::string(head) +
                 "' is no precision of a head; give K/V, each raw, q8 or q4, such as q8/q4");
  }

  std::string_view rest_;
  std::size_t line_ = 0;
};

std::string geometry(std::size_t layers, std::uint32_t kv_heads) {
  return std::to_string(layers) + " layers of " + std::to_string(kv_heads) + " kv heads";
}

}  // namespace

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::raw:
      return "raw";
    case Precision::q8:
      return "q8";
    case Precision::q4:
      return "q4";
  }
  return "?";
}

double PrecisionMap::mean_bits() const {
  double bits = 0;
  for (const HeadPrecision& head : heads) bits += bits_of(head.key) + bits_of(head.value);
  return heads.empty() ? 0 : bits / (2.0 * static_cast<double>(heads.size()));
}

Digest128 PrecisionMap::digest() const {
  const std::string text = to_text(*this);
  return hash_bytes(std::as_bytes(std::span(text)));
}

std::string to_text(const PrecisionMap& map) {
  std::string text = std::string(first_line) + "\nmodel " + map.model + "\nlayers " +
                     std::to_string(map.layers()) + "\nheads " + std::to_string(map.kv_heads) +
                     "\n";
  for (std::uint32_t layer = 0; layer < map.layers(); ++layer) {
    text += std::to_string(layer);
    for (std::uint32_t kv_head = 0; kv_head < map.kv_heads; ++kv_head) {
      const HeadPrecision head = map.head(layer, kv_head);
      text += std::string(" ") + to_string(head.key) + "/" + to_string(head.value);
    }
    text += '\n';
  }
  return text;
}

Result<PrecisionMap> parse_precision_map(std::string_view text) { return Parser(text).parse(); }

Result<void> check_precision_map(const PrecisionMap& map, const MappedModel& model) {
  constexpr const char* advice = "make one for this model with headrace calibrate";
  if (map.model != model.digest) {
    return Error{
        ErrorCode::invalid_argument,
        "it is for the model " + map.model + ", and this one is " + model.digest + "; " + advice};
  }
  if (map.layers() != model.layers || map.kv_heads != model.kv_heads) {
    return Error{ErrorCode::invalid_argument,
                 "it has " + geometry(map.layers(), map.kv_heads) + ", and the model has " +
                     geometry(model.layers, model.kv_heads) + "; " + advice};
  }
  return {};
}

}  // namespace headrace
