#include "policy/topic_shift.h"

#include <gtest/gtest.h>

#include "policy/topic_shift_dialogues.h"

namespace headrace {
namespace {

struct Count {
  int shifts = 0, found = 0;    // topics that begin, and those that were noticed
  int others = 0, alarmed = 0;  // turns that go on, and those that were taken for a shift
  bool operator==(const Count&) const = default;
};

Count count_shifts(const std::vector<std::vector<test::Turn>>& dialogues) {
  Count sum;
  for (const auto& dialogue : dialogues) {
    TopicShift topics;
    for (const test::Turn& turn : dialogue) {
      const bool begins = topics.begins_topic(turn.said);
      topics.add(turn.answer);
      if (&turn == &dialogue.front()) {
        EXPECT_FALSE(begins) << turn.said;
      } else if (turn.is_new_topic) {
        ++sum.shifts;
        sum.found += begins ? 1 : 0;
      } else {
        ++sum.others;
        sum.alarmed += begins ? 1 : 0;
      }
    }
  }
  return sum;
}

// The figures of docs/policies.md.
TEST(TopicShift, IsFoundInMadeUpDialogues) {
  EXPECT_EQ(count_shifts(test::tuned_dialogues),
            (Count{.shifts = 6, .found = 6, .others = 20, .alarmed = 2}));
  EXPECT_EQ(count_shifts(test::other_dialogues),
            (Count{.shifts = 4, .found = 4, .others = 12, .alarmed = 0}));
}

TEST(TopicShift, IsNothingThatIsTooShortToTell) {
  TopicShift topics;
  EXPECT_FALSE(topics.begins_topic("How do I grow tomatoes on a balcony?"));
  EXPECT_FALSE(topics.begins_topic("Why?"));
  EXPECT_FALSE(topics.begins_topic(""));
  EXPECT_FALSE(topics.begins_topic("And which book?"));
  EXPECT_TRUE(topics.begins_topic("Recommend chess openings for a tournament."));
}

TEST(TopicShift, StartsAnewBehindAReset) {
  TopicShift topics;
  topics.add("How do I grow tomatoes on a balcony?");
  topics.reset();
  EXPECT_FALSE(topics.begins_topic("Recommend chess openings for a tournament."));
}

TEST(TopicShift, TakesFormsOfAWordAndCapitalsForTheSame) {
  TopicShift topics;
  topics.add("Vaccines train immune cells.");
  EXPECT_FALSE(topics.begins_topic("VACCINATED people have trained cells, apparently."));
}

TEST(TopicShift, ReadsOtherScriptsAndBrokenText) {
  TopicShift topics;
  topics.add("Помидоры растут на балконе.");
  EXPECT_FALSE(topics.begins_topic("Помидоры надо поливать?"));
  EXPECT_TRUE(topics.begins_topic("Посоветуйте шахматные дебюты для турнира"));
  topics.reset();
  topics.add("番茄可以在阳台上种植");
  EXPECT_FALSE(topics.begins_topic("阳台上的番茄需要多少水和阳光"));
  EXPECT_TRUE(topics.begins_topic("请推荐几个国际象棋开局给初学者"));
  topics.begins_topic("\xE7\x95");
  topics.begins_topic("\xFF\xC3");
}

}  // namespace
}  // namespace headrace
