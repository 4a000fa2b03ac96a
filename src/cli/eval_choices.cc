#include "cli/eval_choices.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace headrace {
namespace {

/// HellaSwag's own files have it as text.
std::optional<std::size_t> parse_label(const nlohmann::json& label) {
  if (label.is_number_unsigned()) return label.get<std::size_t>();
  if (!label.is_string()) return {};
  const auto& text = label.get_ref<const std::string&>();
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

/// What is wrong with a line, or nothing.
std::string parse_line(std::string_view line, EvalQuestion& question) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return "not an object of JSON";
  const auto beginning = json.find("ctx");
  if (beginning == json.end() || !beginning->is_string() || beginning->empty()) {
    return "give it the text \"ctx\"";
  }
  question.text = beginning->get<std::string>();
  const auto endings = json.find("endings");
  if (endings == json.end() || !endings->is_array() || endings->size() < 2) {
    return "give it \"endings\", a list of two texts or more";
  }
  for (const nlohmann::json& ending : *endings) {
    if (!ending.is_string() || ending.get_ref<const std::string&>().empty()) {
      return "give it \"endings\" that are texts, none of them empty";
    }
    const auto& text = ending.get_ref<const std::string&>();
    question.answers.push_back((text.front() == ' ' ? "" : " ") + text);
  }
  const auto label = json.find("label");
  const std::optional<std::size_t> right = label == json.end() ? std::nullopt : parse_label(*label);
  if (!right || *right >= question.answers.size()) {
    return "give it \"label\", the number of the right ending, from 0 to " +
           std::to_string(question.answers.size() - 1);
  }
  question.right = *right;
  return {};
}

}  // namespace

Result<EvalTask> make_choices_task(std::string_view text, const std::string& file,
                                   const EvalTaskSetup& setup) {
  std::vector<EvalQuestion> questions;
  std::size_t number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = text.substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    EvalQuestion question;
    if (const std::string wrong = parse_line(line, question); !wrong.empty()) {
      std::string message = file;
      message.append(":").append(std::to_string(number)).append(": ").append(wrong);
      return Error{ErrorCode::corrupt, std::move(message)};
    }
    questions.push_back(std::move(question));
  }
  if (questions.empty()) {
    return Error{ErrorCode::invalid_argument,
                 file + " has no lines; give it one for each question of --choices"};
  }
  const std::size_t asked = std::min<std::size_t>(setup.items, questions.size());
  std::size_t longest = 0;
  for (const EvalQuestion& question : std::span(questions).first(asked)) {
    for (const std::string& answer : question.answers) {
      longest = std::max(longest, setup.count_tokens("\n" + question.text + answer));
    }
  }
  if (longest + 2 > setup.context_tokens) {
    return Error{ErrorCode::invalid_argument, "a question of " + file + " has " +
                                                  std::to_string(longest) +
                                                  " tokens; give a --context that is larger"};
  }
  EvalContext context = {.text = "Each line is a short story.", .questions = {}};
  std::size_t taken = longest + setup.count_tokens(context.text);
  for (const EvalQuestion& shown : std::span(questions).subspan(asked)) {
    const std::string example = "\n" + shown.text + shown.answers[shown.right];
    taken += setup.count_tokens(example);
    if (taken > setup.context_tokens) break;
    context.text += example;
  }
  for (EvalQuestion& question : std::span(questions).first(asked)) {
    question.text = "\n" + question.text;
    context.questions.push_back(std::move(question));
  }
  return EvalTask{.name = "choices", .contexts = {std::move(context)}};
}

}  // namespace headrace
