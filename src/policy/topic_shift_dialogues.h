// Made-up dialogues for topic_shift_test.cc, each with one new topic or more.
#pragma once

#include <vector>

namespace headrace::test {

struct Turn {
  const char* said;
  const char* answer;
  bool is_new_topic = false;
};

/// The decider's limits were chosen with these in view.
inline const std::vector<std::vector<Turn>> tuned_dialogues = {
    {
        {"How do I grow tomatoes on a balcony?",
         "Use a deep pot with rich soil, put the tomatoes where they get six hours of sun, and "
         "water them every morning. Tie the stems to a stick."},
        {"How often should I water them when it is hot?",
         "In hot weather water the pots twice a day, morning and evening, so that the soil never "
         "dries out."},
        {"The leaves are turning yellow. What is wrong?",
         "Yellow leaves at the bottom are normal. If all leaves turn yellow the plants lack "
         "nitrogen or get too much water."},
        {"Which fertilizer would you use for the plants?",
         "A tomato fertilizer with much potassium, once a week from the first flowers on."},
        {"Please explain how a bank calculates compound interest on a savings account.",
         "The bank adds the interest to the balance, and the next period pays interest on both. "
         "The balance is the deposit times one plus the rate, to the power of the years.",
         true},
        {"So how much is a deposit of 1000 after ten years at five percent?",
         "The balance after ten years is about 1629, of which 629 is interest."},
    },
    {
        {"Write a Python function that reverses a linked list.",
         "def reverse(head): previous = None; while head: head.next, previous, head = previous, "
         "head, head.next; return previous. The function walks the list once."},
        {"Can you do it with recursion?",
         "Yes: a recursive function reverses the rest of the list and then hangs the head behind "
         "it. It needs stack space for each node."},
        {"What happens with an empty list?",
         "The function returns None at once, because the head is None and the loop never runs."},
        {"Now add type hints to the function.",
         "def reverse(head: Node | None) -> Node | None. The variable previous has the same type."},
        {"I am travelling to Lisbon in October. What should I pack for the weather?",
         "Lisbon is mild in October, around 20 degrees, with some rain. Pack a light jacket, an "
         "umbrella and comfortable shoes for the hills.",
         true},
        {"Is the umbrella really necessary in October?",
         "It rains on about eight days of the month, so a small umbrella is sensible."},
        {"And which museums in Lisbon are worth a visit?",
         "The tile museum, the Gulbenkian and the maritime museum in Belem."},
    },
    {
        {"Who was the first Roman emperor?",
         "Augustus, who ruled from 27 BC to 14 AD. He was the adopted son of Julius Caesar and "
         "ended the civil wars of the republic."},
        {"How did Augustus come to power?",
         "He defeated Mark Antony and Cleopatra at Actium, and the senate gave him the powers of "
         "several offices at once."},
        {"What did the senate think of him?",
         "Most senators accepted him since he brought peace, kept the forms of the republic and "
         "shared offices with them."},
        {"My knee hurts after running. Should I see a doctor?",
         "If the pain lasts more than two weeks, the knee swells or gives way, see a doctor. Until "
         "then rest, cool it and run less.",
         true},
        {"It hurts most when I walk down stairs.",
         "Pain in front of the knee on stairs often comes from the kneecap. Exercises for the "
         "thigh muscles help."},
        {"Which exercises for the thigh do you mean?",
         "Straight leg raises, wall sits and slow step downs, three times a week."},
    },
    {
        {"Give me a recipe for lentil soup.",
         "Fry an onion, carrots and celery in oil, add 300 g of lentils, cumin and a litre of "
         "broth, and cook the soup for 30 minutes. Season with lemon."},
        {"I have no celery. What can I use instead of it?",
         "Use a piece of celeriac, fennel or simply more carrots; the soup will be a little "
         "sweeter."},
        {"Can I freeze the soup?",
         "Yes, lentil soup keeps for three months in the freezer. Leave out the lemon until you "
         "serve it."},
        {"How do vaccines train the immune system?",
         "A vaccine shows the immune system a harmless part of a germ. Cells that recognise it "
         "multiply, make antibodies and stay as memory cells.",
         true},
        {"How long do those memory cells live?",
         "Some memory cells live for decades, which is why a vaccine against measles protects for "
         "life."},
        {"Recommend a strategy for my first chess tournament next weekend.",
         "Play openings that you know, use your clock evenly, and check every move for blunders. "
         "Between rounds eat and rest.",
         true},
        {"Which openings are good for a beginner with the white pieces?",
         "The Italian game and the London system: sound openings with clear plans and little "
         "theory."},
    },
    {
        {"Explain the difference between a virus and bacteria.",
         "Bacteria are living cells that feed and divide by themselves. A virus is a packet of "
         "genes that needs the cells of a host."},
        {"Which of them do antibiotics work against?",
         "Antibiotics work against bacteria only. They attack cell walls or ribosomes, which a "
         "virus does not have."},
        {"Help me write a cover letter for a job as a librarian.",
         "Dear Ms Brown, as a trained librarian with five years at a city library I would love to "
         "join your team. I know cataloguing and enjoy helping readers.",
         true},
        {"Make the letter shorter and more friendly.",
         "Dear Ms Brown, your library is my favourite place in town, and I would love to work "
         "there. I bring five years of experience as a librarian."},
        {"Add a sentence about my experience with children.",
         "Every Saturday I read stories to children, and their laughter is the best part of my "
         "week."},
    },
};

/// Written at the same time, and looked at when the limits had been chosen.
inline const std::vector<std::vector<Turn>> other_dialogues = {
    {
        {"What is the tallest mountain in Africa?",
         "Kilimanjaro in Tanzania, 5895 metres high. It is a volcano with three cones."},
        {"How long does it take to climb it?",
         "Most climbers take six to eight days. More days on the mountain make it easier to get "
         "used to the height."},
        {"Do I need a guide for the climb?",
         "Yes, the park requires a licensed guide for every group of climbers."},
        {"What does a good pair of hiking boots cost?",
         "Good hiking boots cost between 150 and 300 euros. Break them in before the climb."},
        {"Translate this sentence into French: the library is closed on Mondays.",
         "La bibliotheque est fermee le lundi.", true},
        {"And into Spanish, please.", "La biblioteca esta cerrada los lunes."},
    },
    {
        {"My laptop does not start any more. The screen stays black.",
         "Hold the power button for 30 seconds, disconnect everything, and try again with the "
         "charger. If the fan runs, connect another screen."},
        {"The fan runs but the other screen is black too.",
         "Then the memory or the graphics chip may be at fault. Take the memory modules out and "
         "put them in again."},
        {"How do I open the case without breaking it?",
         "Remove all screws at the bottom, also those under the rubber feet, and lift the case "
         "with a plastic card."},
        {"Tell me a bedtime story about a dragon who is afraid of fire.",
         "Once a little dragon named Ember hid from every candle. One cold night his friends were "
         "freezing, and a tiny flame from his nose warmed them all.",
         true},
        {"Continue the story. What did the friends say?",
         "They said that a brave dragon is one who is afraid and still helps, and Ember was "
         "proud."},
        {"Compare solar panels and wind turbines for a farm with 20 hectares.",
         "Solar panels are cheaper to keep and silent. A wind turbine yields more in winter, but "
         "needs a permit and steady wind.",
         true},
        {"How much land do the panels need?",
         "About one hectare for each megawatt, and sheep can graze under the panels."},
    },
    {
        {"Summarise the plot of Hamlet in two sentences.",
         "The ghost of his father asks prince Hamlet to avenge his murder by Claudius. Hamlet "
         "hesitates, and in the end nearly everybody at court is dead."},
        {"Why does Hamlet hesitate?",
         "He doubts the ghost, thinks too much, and shrinks from killing Claudius at prayer."},
        {"Who survives at the end?",
         "Horatio survives to tell the story, and Fortinbras takes the crown of Denmark."},
        {"Is there a good film version?",
         "The film by Kenneth Branagh is complete and splendid; that by Laurence Olivier is "
         "shorter and darker."},
        {"What is the speed limit on German motorways for trucks?",
         "Trucks above 3.5 tonnes may drive 80 kilometres per hour on German motorways.", true},
        {"And for cars with a trailer?",
         "Also 80 kilometres per hour, or 100 with a special permit for the trailer."},
    },
};

}  // namespace headrace::test
