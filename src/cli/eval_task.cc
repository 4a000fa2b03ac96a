#include "cli/eval_task.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "base/check.h"

namespace headrace {
namespace {

// The distributions of the standard library differ from one to the next; its engines do not.
using Random = std::mt19937_64;

constexpr std::size_t longest_sentence_bytes = 400;
/// Texts that are tokenised together may have a few tokens more than each for itself.
constexpr std::size_t spare_tokens = 16;

// All of them common, so that a tokenizer has one or two tokens for each.
constexpr std::array words = {
    "apple",  "river",  "candle", "marble",   "thunder", "violin", "garden", "pencil",
    "rocket", "pepper", "window", "basket",   "silver",  "hammer", "planet", "turtle",
    "cotton", "bridge", "wizard", "copper",   "ladder",  "monkey", "orange", "pillow",
    "rabbit", "saddle", "ticket", "umbrella", "valley",  "walnut", "yellow", "anchor",
    "button", "castle", "dragon", "engine",   "feather", "guitar", "helmet", "island",
};

std::size_t below(Random& random, std::size_t limit) { return random() % limit; }
/// From 0 to 1.
double fraction(Random& random) { return static_cast<double>(random() >> 11U) * 0x1p-53; }

std::string five_digits(Random& random) { return std::to_string(10000 + below(random, 90000)); }

std::string letters(Random& random, std::size_t count, std::string_view alphabet) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += alphabet[below(random, alphabet.size())];
  return text;
}

/// `count` different words.
std::vector<std::string> draw_words(Random& random, std::size_t count) {
  std::vector<std::string> drawn(words.begin(), words.end());
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(drawn[i], drawn[i + below(random, drawn.size() - i)]);
  }
  drawn.resize(count);
  return drawn;
}

/// Tasks have their own, so that none depends on which others are made.
std::uint64_t seed_of(std::uint64_t seed, std::string_view task) {
  for (const char c : task) seed = seed * 31 + static_cast<unsigned char>(c);
  return seed;
}

/// What a context is made of, besides the sentences that it is filled up with.
struct Draft {
  std::string begin;  ///< its first sentence, if any
  std::vector<std::string> facts;
  std::vector<EvalQuestion> questions;
};

class TaskMaker {
 public:
  TaskMaker(const EvalTaskSetup& setup, std::string name)
      : setup_(setup), name_(std::move(name)), random_(seed_of(setup.seed, name_)) {}

  Result<EvalTask> make() {
    EvalTask task = {.name = name_, .contexts = {}};
    while (task.questions() < setup_.items) {
      const std::size_t left = setup_.items - task.questions();
      HEADRACE_TRY_ASSIGN(EvalContext context, make_context(task.questions()));
      if (context.questions.size() > left) context.questions.resize(left);
      task.contexts.push_back(std::move(context));
    }
    return task;
  }

 private:
  Result<EvalContext> make_context(std::size_t nth) {
    if (name_ == "passkey") return passkey(nth);
    if (name_ == "needle") return needle();
    if (name_ == "variables") return variables();
    if (name_ == "words") return frequent_words();
    HEADRACE_CHECK(name_ == "induction", "the name of a task");
    return induction();
  }

  Result<EvalContext> passkey(std::size_t nth) {
    const std::string key = five_digits(random_);
    Draft draft = {
        .begin = "A pass key is hidden in this text. Find it and remember it.",
        .facts = {"The pass key is " + key + ". Remember it. " + key + " is the pass key."},
        .questions = {{.text = " What is the pass key? The pass key is", .answers = {" " + key}}},
    };
    // One fact a context, so contexts share the depths among them.
    return bury(std::move(draft), static_cast<double>(nth) / setup_.items, 1.0 / setup_.items);
  }

  Result<EvalContext> needle() {
    constexpr std::size_t needles = 4;
    Draft draft;
    for (const std::string& name : draw_words(random_, needles)) {
      const std::string number = five_digits(random_);
      std::string what = " The special magic number for ";
      what.append(name).append(" is");
      draft.facts.push_back(what.substr(1) + " " + number + ".");
      draft.questions.push_back({.text = what, .answers = {" " + number}});
    }
    return bury(std::move(draft));
  }

  /// Two chains, whose links alternate: a value is given to a variable, that one to the next. Each
  /// question has the way so far, from the end of a chain on, and asks for the next link.
  Result<EvalContext> variables() {
    constexpr std::size_t chains = 2;
    constexpr std::size_t links = 3;
    Draft draft;
    std::vector<std::string> values;
    while (values.size() < chains * links) {
      const std::string variable = "VAR " + letters(random_, 3, "ABCDEFGHJKLMNPQRSTUVWXYZ");
      if (std::ranges::find(values, variable) != values.end()) continue;
      const std::string value =
          values.size() < chains ? five_digits(random_) : values[values.size() - chains];
      draft.facts.push_back(variable);
      draft.facts.back().append(" = ").append(value).append(".");
      values.push_back(variable);
    }
    for (std::size_t chain = 0; chain < chains; ++chain) {
      std::string way;
      for (std::size_t link = links; link-- > 0;) {
        const std::string& fact = draft.facts[link * chains + chain];
        const std::size_t value = fact.find('=') + 1;
        draft.questions.push_back({.text = way + " " + fact.substr(0, value),
                                   .answers = {fact.substr(value, fact.size() - 1 - value)}});
        way += " " + fact;
      }
    }
    return bury(std::move(draft));
  }

  /// A list in which four words make up half. Each question has one of them among rare ones.
  Result<EvalContext> frequent_words() {
    constexpr std::size_t frequent = 4;
    constexpr std::size_t choices = 4;
    const std::vector<std::string> drawn = draw_words(random_, words.size());
    EvalContext context = {.text = "Below is a list of words.", .questions = {}};
    for (std::size_t i = 0; i < frequent; ++i) {
      EvalQuestion question;
      question.text = "\nThe word that appears most often in the list is \"";
      question.right = below(random_, choices);
      for (std::size_t choice = 0; choice < choices; ++choice) {
        const bool is_right = choice == question.right;
        question.answers.push_back(drawn[is_right ? i : frequent + i * choices + choice]);
      }
      context.questions.push_back(std::move(question));
    }
    HEADRACE_TRY_ASSIGN(std::size_t left, room(context.text, context.questions));
    while (true) {
      const bool is_frequent = below(random_, 2) == 0;
      const std::string word =
          " " + (is_frequent ? drawn[below(random_, frequent)]
                             : drawn[frequent + below(random_, drawn.size() - frequent)]);
      const std::size_t tokens = setup_.count_tokens(word);
      if (tokens > left) break;
      left -= tokens;
      context.text += word;
    }
    return context;
  }

  Result<EvalContext> induction() {
    constexpr std::size_t strings = 4;
    constexpr std::size_t groups = 8;
    constexpr std::size_t groups_shown = 4;
    constexpr std::size_t groups_asked = 2;
    Draft draft;
    for (std::size_t i = 0; i < strings; ++i) {
      std::string shown, asked, fact;
      for (std::size_t group = 0; group < groups; ++group) {
        const std::string text = letters(random_, 5, "abcdefghijklmnopqrstuvwxyz0123456789");
        fact += (group > 0 ? " " : "") + text;
        if (group < groups_shown) {
          shown += " " + text;
        } else if (group < groups_shown + groups_asked) {
          asked += " " + text;
        }
      }
      draft.facts.push_back(fact + ".");
      draft.questions.push_back({.text = shown, .answers = {asked}});
    }
    return bury(std::move(draft));
  }

  /// Tokens that are left in the context for what the facts lie in.
  Result<std::size_t> room(std::string_view text, std::span<const EvalQuestion> questions) const {
    std::size_t longest = 0;
    for (const EvalQuestion& question : questions) {
      for (const std::string& answer : question.answers) {
        longest = std::max(longest, setup_.count_tokens(question.text + answer));
      }
    }
    const std::size_t taken = setup_.count_tokens(text) + longest + spare_tokens;
    if (taken >= setup_.context_tokens) {
      return Error{ErrorCode::invalid_argument,
                   "--context " + std::to_string(setup_.context_tokens) + " has no room for task " +
                       name_ + "; give at least " + std::to_string(2 * taken)};
    }
    return setup_.context_tokens - taken;
  }

  /// The facts in their order, each somewhere in its part of the text between `from` and
  /// `from + length`, 0 being the beginning and 1 the end.
  Result<EvalContext> bury(Draft draft, double from = 0, double length = 1) {
    std::string all = draft.begin;
    for (const std::string& fact : draft.facts) all += " " + fact;
    HEADRACE_TRY_ASSIGN(std::size_t left, room(all, draft.questions));
    const std::size_t first = below(random_, setup_.sentences.size());
    std::vector<const std::string*> hay;
    while (true) {
      const std::string& sentence =
          setup_.sentences[(first + hay.size()) % setup_.sentences.size()];
      const std::size_t tokens = setup_.count_tokens(" " + sentence);
      if (tokens > left) break;
      left -= tokens;
      hay.push_back(&sentence);
    }
    EvalContext context = {.text = std::move(draft.begin), .questions = std::move(draft.questions)};
    const auto add = [&](const std::string& sentence) {
      context.text += (context.text.empty() ? "" : " ") + sentence;
    };
    const auto count = static_cast<double>(draft.facts.size());
    std::size_t added = 0;
    for (std::size_t fact = 0; fact < draft.facts.size(); ++fact) {
      const double part = (static_cast<double>(fact) + fraction(random_)) / count;
      const auto before =
          static_cast<std::size_t>((from + length * part) * static_cast<double>(hay.size()));
      for (; added < before; ++added) add(*hay[added]);
      add(draft.facts[fact]);
    }
    for (; added < hay.size(); ++added) add(*hay[added]);
    return context;
  }

  const EvalTaskSetup& setup_;
  const std::string name_;
  Random random_;
};

}  // namespace

std::size_t EvalTask::questions() const {
  std::size_t count = 0;
  for (const EvalContext& context : contexts) count += context.questions.size();
  return count;
}

std::vector<std::string> eval_task_names() {
  return {"passkey", "needle", "variables", "words", "induction"};
}

Result<EvalTask> make_eval_task(const std::string& name, const EvalTaskSetup& setup) {
  return TaskMaker(setup, name).make();
}

std::vector<std::string> split_sentences(std::string_view text) {
  std::vector<std::string> sentences;
  std::string sentence;
  for (std::size_t start = text.find_first_not_of(" \t\r\n"); start != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n", start), text.size());
    sentence += (sentence.empty() ? "" : " ") + std::string(text.substr(start, end - start));
    start = text.find_first_not_of(" \t\r\n", end);
    const bool ends = std::string_view(".!?").find(sentence.back()) != std::string_view::npos;
    if (ends || sentence.size() >= longest_sentence_bytes || start == std::string_view::npos) {
      sentences.push_back(std::exchange(sentence, {}));
    }
  }
  return sentences;
}

std::vector<std::string> made_up_sentences(std::size_t count, std::uint64_t seed) {
  constexpr std::array who = {"The old teacher", "A young farmer", "My neighbour", "The captain",
                              "Her brother",     "A stranger",     "The doctor",   "His aunt"};
  constexpr std::array does = {"looked at",  "walked past", "wrote about", "asked for",
                               "dreamed of", "painted",     "carried",     "forgot"};
  constexpr std::array what = {"the small house", "a wooden boat",   "the long road",
                               "some warm bread", "a broken clock",  "the empty street",
                               "a blue letter",   "the quiet forest"};
  constexpr std::array when = {"in the morning",  "after the rain",     "before winter came",
                               "on the way home", "during the holiday", "late at night",
                               "while it snowed", "without a word"};
  Random random(seed);
  std::vector<std::string> sentences;
  for (std::size_t i = 0; i < count; ++i) {
    std::string sentence = who[below(random, who.size())];
    sentence.append(" ").append(does[below(random, does.size())]);
    sentence.append(" ").append(what[below(random, what.size())]);
    sentence.append(" ").append(when[below(random, when.size())]).append(".");
    sentences.push_back(std::move(sentence));
  }
  return sentences;
}

}  // namespace headrace
