// What --kv-disk keeps from one run of the command to the next: prompts, conversations, and what is
// done when some of it is damaged, in use or none of ours.
#include <signal.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/command_test_fixture.h"
#include "tests/support/segments.h"

namespace headrace::test {
namespace {

constexpr const char* old_page_file = "pages-0123456789abcdef.hrp";

class Store : public CommandTest {
 protected:
  /// Segments stay, and nothing else of ours.
  void TearDown() override {
    if (IsSkipped()) return;
    for (const std::string& name : list_names(kv_directory_)) {
      EXPECT_TRUE(segment_number(name).has_value() || foreign_.contains(name)) << name;
    }
    for (const auto& [name, bytes] : foreign_) {
      EXPECT_EQ(read_bytes(kv_directory_ + "/" + name), bytes) << name << " is not ours to touch";
    }
  }

  void add_foreign_file(const std::string& name, std::size_t bytes) {
    foreign_[name] = made_up_text(bytes);
    write_bytes(kv_directory_ + "/" + name, foreign_[name]);
  }

  Arguments run_in(const std::string& disk, const std::string& model) const {
    return {"run", "-m", model,    "--raw",        "-f",        file_with(made_up_text(900)),
            "-n",  "24", "--json", "--ignore-eos", "--kv-disk", disk};
  }
  Arguments run_tiny(const Arguments& more = {}) const {
    return run_in(kv_directory_, model_) + Arguments{"--context", "1024", "--block-tokens", "16"} +
           more;
  }
  Arguments chat_tiny(const std::string& session) const {
    return {"chat",           "-m", model_,      "-n",    "6",         "--ignore-eos",
            "--block-tokens", "16", "--session", session, "--kv-disk", kv_directory_};
  }
  Arguments sessions(const Arguments& what) const {
    return Arguments{"sessions"} + what + Arguments{"--kv-disk", kv_directory_};
  }
  static CommandOptions saying(const std::string& lines) {
    CommandOptions options;
    options.input = lines;
    return options;
  }
  /// Killed when the answer has been saved, while it waits for the next line.
  static CommandOptions killed_after(const std::string& lines) {
    CommandOptions options = saying(lines);
    options.keep_input_open = true;
    options.signal = SIGKILL;
    options.signal_after_text = "(cut after";
    return options;
  }
  void save_session(const std::string& name) const {
    const auto chat = run_command(chat_tiny(name), saying("Hello there, miller\n"));
    ASSERT_EQ(chat.exit_code, 0) << chat.err;
  }

  void damage_every_page() const {
    std::size_t pages = 0;
    for (const std::string& path : segment_files(kv_directory_)) {
      std::string bytes = read_bytes(path);
      for (const RecordHeader& page : page_records_of(bytes)) {
        char& damaged = bytes[page.offset + segment_unit_bytes + page.payload_bytes / 2];
        damaged = static_cast<char>(damaged ^ 1);
        ++pages;
      }
      write_bytes(path, bytes);
    }
    ASSERT_GT(pages, 0U);
  }

  /// The second run of the same prompt reads its last token only, and `again` others at most.
  void expect_restart(const Arguments& run, int again = 0) const {
    const Json first = parse_json(run_command(run));
    EXPECT_EQ(first["reused_tokens"], 0);
    EXPECT_FALSE(segment_files(kv_directory_).empty());
    const Json second = parse_json(run_command(run));
    EXPECT_EQ(second["tokens"], first["tokens"]);
    EXPECT_EQ(second["prompt_tokens"], first["prompt_tokens"]);
    EXPECT_GE(second["reused_tokens"].get<int>(), first["prompt_tokens"].get<int>() - 1 - again);
    EXPECT_EQ(second["pages_damaged"], 0);
    EXPECT_LE(second["kv_bytes_peak"].get<std::uint64_t>(),
              second["kv_bytes_limit"].get<std::uint64_t>());
  }

  std::map<std::string, std::string> foreign_;  // by name
};

// ----------------------------------------------------------------------------------------------
// runs

TEST_F(Store, ASecondRunStartsFromWhatTheFirstHasRead) { expect_restart(run_tiny()); }

TEST_F(Store, ASecondRunDoesSoWithEveryWayOfKeepingPages) {
  for (const Arguments& how :
       {Arguments{"--kv-disk-codec", "lossless"}, Arguments{"--kv-disk-io", "direct"},
        Arguments{"--kv-memory", "4MiB", "--kv-host-percent", "20"}, Arguments{"--kv-codec", "q8"},
        Arguments{"--kv-write-through"}}) {
    SCOPED_TRACE(how[0] + (how.size() > 1 ? " " + how[1] : ""));
    for (const std::string& path : segment_files(kv_directory_)) std::filesystem::remove(path);
    // The start of a full block that a lossy codec has made is not what its rows were.
    expect_restart(run_tiny(how), how[0] == "--kv-codec" ? 15 : 0);
  }
}

TEST_F(Store, IsLeftAsItWasByARunThatKeepsNothing) {
  const Arguments run = run_tiny({"--no-kv-keep"});
  EXPECT_EQ(parse_json(run_command(run))["reused_tokens"], 0);
  EXPECT_EQ(parse_json(run_command(run))["reused_tokens"], 0);
  EXPECT_EQ(list_names(kv_directory_), std::vector<std::string>{});
}

TEST_F(Store, OfAnotherModelIsNotTakenOver) {
  const Json first = parse_json(run_command(run_tiny()));
  const Json other = parse_json(run_command(run_tiny({"--kv-type", "f16"})));
  EXPECT_EQ(other["reused_tokens"], 0);
  const Json again = parse_json(run_command(run_tiny()));
  EXPECT_EQ(again["tokens"], first["tokens"]);
}

TEST_F(Store, OfAnotherPrecisionMapIsNotTakenOver) {
  const std::string map = directory_.path_of("a.map");
  const auto calibrated =
      run_command({"calibrate", "-m", model_, "-f", file_with(made_up_text(2000)), "--out", map,
                   "--context", "64", "--last", "16", "--block-tokens", "16", "--bits", "6"});
  ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
  const Arguments run = run_tiny({"--kv-codec", "map:" + map});
  const Json first = parse_json(run_command(run));
  const std::string text = read_bytes(map);
  std::string changed = text;  // K of one head
  const std::size_t head = changed.find(' ', changed.find("\n3 ") + 1) + 1;
  changed.replace(head, changed.find('/', head) - head,
                  changed.compare(head, 2, "q8") == 0 ? "q4" : "q8");
  write_bytes(map, changed);
  EXPECT_EQ(parse_json(run_command(run))["reused_tokens"], 0);
  write_bytes(map, "# the same but for this line\n" + text);
  const Json again = parse_json(run_command(run));
  EXPECT_GT(again["reused_tokens"], 0);
  EXPECT_EQ(again["tokens"], first["tokens"]);
  EXPECT_EQ(again["pages_damaged"], 0);
}

TEST_F(Store, OfARunThatWasKilledInTheMiddleOfAnAnswerIsOfUse) {
  const Json first = parse_json(run_command(run_tiny()));
  CommandOptions options;
  options.signal = SIGKILL;
  options.signal_after_milliseconds = 300;
  const auto killed = run_command(
      {"run", "-m", model_, "--raw", "-f", directory_.path_of("prompt.txt"), "-n", "0",
       "--ignore-eos", "--block-tokens", "16", "--kv-write-through", "--kv-disk", kv_directory_},
      options);
  EXPECT_TRUE(killed.exit_code == 128 + SIGKILL || killed.exit_code == 0) << killed.err;
  const Json third = parse_json(run_command(run_tiny()));
  EXPECT_EQ(third["tokens"], first["tokens"]);
  EXPECT_EQ(third["reused_tokens"].get<int>(), third["prompt_tokens"].get<int>() - 1);
}

TEST_F(Store, IsForOneProcessAtATime) {
  CommandOptions options = saying("Hello\n");
  options.keep_input_open = true;
  options.signal = SIGTERM;
  options.signal_after_text = "(cut after";
  CommandResult run;
  CommandResult list;
  CommandResult verify;
  options.before_signal = [&] {
    run = run_command(run_tiny());
    list = run_command(sessions({"list"}));
    verify = run_command({"verify", kv_directory_});
  };
  run_command(chat_tiny("monday"), options);
  expect_one_line_error(run, exit_failure, "held by someone else");
  expect_one_line_error(run, exit_failure, kv_directory_);
  expect_one_line_error(list, exit_failure, "held by someone else");
  expect_one_line_error(verify, exit_failure, "held by someone else");
  EXPECT_EQ(run_command(run_tiny()).exit_code, 0) << "and free again when that one is gone";
}

TEST_F(Store, CountsForeignFilesAndNeverTouchesThem) {
  add_foreign_file("photo.jpg", 300'000);
  add_foreign_file(old_page_file, 200'000);
  const std::uint64_t limit = 500'000 + disk_bytes_of_pages(120);
  const auto limited = [&](std::uint64_t bytes) {
    return run_in(kv_directory_ + ":" + std::to_string(bytes), model_) +
           Arguments{"--context", "1024", "--block-tokens", "16"};
  };
  const Json first = parse_json(run_command(limited(limit)));
  EXPECT_GT(first["disk_bytes_peak"].get<std::uint64_t>(), 500'000U);
  for (int round = 0; round < 3; ++round) {
    const Json next = parse_json(run_command(limited(limit) + Arguments{"--kv-type", "f16"}));
    EXPECT_LE(next["disk_bytes_peak"].get<std::uint64_t>(), limit);
  }
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kv_directory_)) {
    bytes += entry.file_size();
  }
  EXPECT_LE(bytes, limit);
  const Json verified = parse_json(run_command({"verify", kv_directory_, "--json"}));
  EXPECT_EQ(verified["foreign_files"], Json({old_page_file, "photo.jpg"}));
}

// ----------------------------------------------------------------------------------------------
// damage

TEST_F(Store, WithAFlippedBitInEveryPageIsReadAgain) {
  const Json first = parse_json(run_command(run_tiny()));
  damage_every_page();
  const Json next = parse_json(run_command(run_tiny()));
  EXPECT_EQ(next["tokens"], first["tokens"]);
  EXPECT_GT(next["pages_damaged"].get<int>(), 0);
}

TEST_F(Store, IsVerifiedAndRepaired) {
  const Json first = parse_json(run_command(run_tiny()));
  const Arguments verify = {"verify", kv_directory_, "--json"};
  const Json whole = parse_json(run_command(verify));
  EXPECT_EQ(whole["damaged"].size(), 0U);
  EXPECT_GT(whole["pages"].get<int>(), 0);
  damage_every_page();
  EXPECT_EQ(parse_json(run_command(verify), exit_failure)["damaged"].size(), whole["pages"]);
  const Json repaired = parse_json(run_command(verify + Arguments{"--repair"}), exit_failure);
  EXPECT_EQ(repaired["damaged"].size(), whole["pages"]);
  EXPECT_EQ(repaired["repaired"], true);
  EXPECT_EQ(parse_json(run_command(verify))["damaged"].size(), 0U);

  const Json next = parse_json(run_command(run_tiny()));
  EXPECT_EQ(next["tokens"], first["tokens"]);
  EXPECT_EQ(next["pages_damaged"], 0) << "none of it was used";
  EXPECT_EQ(parse_json(run_command(run_tiny()))["tokens"], first["tokens"]);
}

// ----------------------------------------------------------------------------------------------
// sessions

TEST_F(Store, AConversationGoesOnInAnotherProcess) {
  const auto whole =
      run_command(chat_tiny("whole"), saying("Hello there, miller\nAnd the wheel?\nThank you\n"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const auto first = run_command(chat_tiny("parts"), killed_after("Hello there, miller\n"));
  EXPECT_EQ(first.exit_code, 128 + SIGKILL) << first.err;
  const auto second = run_command(chat_tiny("parts"), killed_after("And the wheel?\n"));
  EXPECT_EQ(second.exit_code, 128 + SIGKILL) << second.err;
  EXPECT_NE(second.err.find("goes on after 2 messages"), std::string::npos) << second.err;
  const auto third = run_command(chat_tiny("parts"), saying("Thank you\n"));
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_NE(third.err.find("goes on after 4 messages"), std::string::npos) << third.err;
  EXPECT_EQ(first.out + second.out + third.out, whole.out);
}

TEST_F(Store, SessionsAreListedShownCopiedAndDeleted) {
  save_session("monday");
  const Json list = parse_json(run_command(sessions({"list", "--json"})));
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0]["name"], "monday");
  EXPECT_EQ(list[0]["model"], "Tiny random model");
  EXPECT_GT(list[0]["tokens"].get<int>(), 0);
  EXPECT_EQ(run_command(sessions({"fork", "monday", "plan-b"})).exit_code, 0);
  EXPECT_EQ(parse_json(run_command(sessions({"list", "--json"}))).size(), 2U);
  EXPECT_EQ(parse_json(run_command(sessions({"show", "plan-b", "--json"})))[0]["tokens"],
            list[0]["tokens"]);
  const auto shown = run_command(sessions({"show", "plan-b"}));
  EXPECT_NE(shown.out.find("Hello there, miller"), std::string::npos) << shown.out;

  // The copy is a conversation of its own.
  const auto one = run_command(chat_tiny("monday"), saying("And the wheel?\n"));
  const auto other = run_command(chat_tiny("plan-b"), saying("And the wheel?\n"));
  EXPECT_EQ(one.out, other.out);
  EXPECT_EQ(run_command(sessions({"delete", "monday"})).exit_code, 0);
  EXPECT_EQ(run_command(chat_tiny("plan-b"), saying("Thank you\n")).exit_code, 0);
  EXPECT_EQ(run_command(sessions({"delete", "plan-b", "--purge"})).exit_code, 0);
  EXPECT_EQ(parse_json(run_command(sessions({"list", "--json"}))).size(), 0U);
  EXPECT_EQ(run_command({"verify", kv_directory_}).exit_code, 0);
}

TEST_F(Store, SessionsAreMovedToAnotherDirectory) {
  save_session("monday");
  const std::string file = directory_.path_of("monday.hrx");
  EXPECT_EQ(run_command(sessions({"export", "monday", file})).exit_code, 0);
  const auto here = run_command(chat_tiny("monday"), saying("And the wheel?\n"));

  const std::string other = directory_.path_of("other");
  std::filesystem::create_directory(other);
  const auto import = run_command({"sessions", "import", file, "--kv-disk", other});
  EXPECT_EQ(import.exit_code, 0) << import.err;
  EXPECT_EQ(import.out, "monday\n");
  Arguments chat = chat_tiny("monday");
  chat.back() = other;
  const auto there = run_command(chat, saying("And the wheel?\n"));
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_EQ(there.out, here.out);
  expect_one_line_error(run_command({"sessions", "import", file, "--kv-disk", other}), exit_usage,
                        "monday");
}

TEST_F(Store, SessionsAreRefusedInOneLine) {
  save_session("monday");
  const std::string file = file_with("mine");
  for (const Arguments& unknown : {Arguments{"show", "tuesday"}, Arguments{"delete", "tuesday"},
                                   Arguments{"fork", "tuesday", "new"},
                                   Arguments{"export", "tuesday", directory_.path_of("new.hrx")}}) {
    SCOPED_TRACE(unknown[0]);
    expect_one_line_error(run_command(sessions(unknown)), exit_usage, "tuesday");
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.path_of("new.hrx")));
  for (const Arguments& bad :
       {Arguments{"show", "../x"}, Arguments{"delete", "a b"}, Arguments{"fork", "monday", "x/y"},
        Arguments{"show", std::string(65, 'a')}}) {
    SCOPED_TRACE(bad[1]);
    expect_one_line_error(run_command(sessions(bad)), exit_usage, "letters");
  }
  expect_one_line_error(run_command(sessions({"fork", "monday", "monday"})), exit_usage, "already");
  expect_one_line_error(run_command(sessions({"export", "monday", file})), exit_failure, file);
  EXPECT_EQ(read_bytes(file), "mine");
  expect_one_line_error(run_command(sessions({"import", file})), exit_failure, "export it again");
  expect_one_line_error(run_command(sessions({"import", directory_.path_of("no.hrx")})), exit_usage,
                        "no.hrx");
  expect_one_line_error(run_command({"sessions", "list", "--kv-disk", directory_.path_of("no")}),
                        exit_usage, "there is no directory");
  Arguments without_disk = chat_tiny("monday");
  without_disk.resize(without_disk.size() - 2);
  expect_one_line_error(run_command(without_disk, saying("x\n")), exit_usage, "--kv-disk");
}

// ----------------------------------------------------------------------------------------------
// real models

TEST_F(Store, OfSmolLm2IsTakenOver) {
  if (test_model_path().empty()) GTEST_SKIP() << "HEADRACE_TEST_MODEL names no model";
  write_bytes(directory_.path_of("licence.txt"), text_of(TextKind::licence, 3000));
  expect_restart({"run", "-m", test_model_path(), "--raw", "-f", directory_.path_of("licence.txt"),
                  "-n", "8", "--ignore-eos", "--json", "--context", "1024", "--kv-disk",
                  kv_directory_});
}

TEST_F(Store, OfAModelWithWindowsIsTakenOver) {
  if (test_gemma_path().empty()) GTEST_SKIP() << "HEADRACE_TEST_GEMMA names no model";
  write_bytes(directory_.path_of("licence.txt"), text_of(TextKind::licence, 6000));
  expect_restart({"run", "-m", test_gemma_path(), "--raw", "-f", directory_.path_of("licence.txt"),
                  "-n", "8", "--ignore-eos", "--json", "--context", "2048", "--kv-disk",
                  kv_directory_});
}

}  // namespace
}  // namespace headrace::test
