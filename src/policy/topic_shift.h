// Whether what somebody says in a conversation begins a new topic: it does if hardly any of its
// words have come in the topic so far. Pure: no IO, no model.
//
// Words that say much are long (frequent words are short in every language), so a word counts with
// its length, and those of 3 letters or fewer do not count. Words are the same if they begin with
// the same 5 letters. Scripts without blanks between words are compared character by character,
// which finds fewer shifts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

namespace headrace {

class TopicShift {
 public:
  /// Whether `said`, to which there is no answer yet, begins a new topic. What is too short to tell
  /// goes on with the old one, and so does whatever comes first. It becomes a part of its topic.
  bool begins_topic(std::string_view said);
  /// Adds an answer, or what was said earlier, to the topic.
  void add(std::string_view text);
  void reset() { words_.clear(); }

 private:
  std::unordered_set<std::string> words_;  // of the topic, their first letters
};

}  // namespace headrace
