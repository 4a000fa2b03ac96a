#include "tests/support/texts.h"

#include <array>
#include <fstream>
#include <random>
#include <sstream>

namespace headrace::test {
namespace {

std::vector<std::string> files_of(TextKind kind) {
  const std::string licences = "/usr/share/common-licenses/";
  switch (kind) {
    case TextKind::licence:
      return {licences + "GPL-3", licences + "GPL-2", licences + "LGPL-2.1"};
    case TextKind::other_licence:
      return {licences + "MPL-2.0", licences + "Apache-2.0", licences + "Artistic",
              licences + "GFDL-1.3"};
    case TextKind::code:
      return {"/usr/include/stdlib.h", "/usr/include/stdio.h", "/usr/include/string.h",
              "/usr/include/math.h"};
  }
  return {};
}

std::string read_if_there(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return std::move(text).str();
}

template <std::size_t count>
const char* pick(const std::array<const char*, count>& words, std::mt19937_64& random) {
  return words[random() % count];
}

}  // namespace

std::vector<TextKind> text_kinds() {
  return {TextKind::licence, TextKind::other_licence, TextKind::code};
}

const char* to_string(TextKind kind) {
  switch (kind) {
    case TextKind::licence:
      return "licence";
    case TextKind::other_licence:
      return "other licence";
    case TextKind::code:
      return "code";
  }
  return "?";
}

std::string text_of(TextKind kind, std::size_t bytes) {
  std::string text;
  for (const std::string& path : files_of(kind)) {
    if (text.size() >= bytes) break;
    text += read_if_there(path);
  }
  if (text.size() < bytes) text += made_up_text(bytes - text.size());
  text.resize(bytes);
  return text;
}

std::string made_up_text(std::size_t bytes) {
  static constexpr std::array subjects = {
      "The miller",           "A careful engineer",       "The old canal",
      "Water from the hills", "The keeper of the sluice", "Nobody in the village",
      "The second wheel"};
  static constexpr std::array verbs = {"opened",   "measured", "forgot about",
                                       "followed", "repaired", "counted"};
  static constexpr std::array objects = {"the gate",
                                         "three stones",
                                         "the level of the pond",
                                         "its own shadow",
                                         "a letter from the north",
                                         "the broken shaft",
                                         "the price of grain"};
  static constexpr std::array endings = {"before the frost came", "and said nothing", "twice a day",
                                         "because the ledger asked for it",
                                         "until the lamps were lit"};
  static constexpr std::array names = {"flow", "level", "gate", "count", "width", "head"};
  std::mt19937_64 random(20240229);
  std::string text;
  while (text.size() < bytes) {
    if (random() % 6 == 0) {
      const char* name = pick(names, random);
      text += std::string("\n    int ") + name + "_" + std::to_string(random() % 100) + " = " +
              pick(names, random) + "(" + name + ", " + std::to_string(random() % 1000) + ");\n\n";
    } else {
      text += std::string(pick(subjects, random)) + ' ' + pick(verbs, random) + ' ' +
              pick(objects, random) + ' ' + pick(endings, random) + ". ";
    }
  }
  text.resize(bytes);
  return text;
}

}  // namespace headrace::test
