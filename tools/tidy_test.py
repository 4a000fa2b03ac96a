#!/usr/bin/env python3
"""Each rule of tidy.py finds what it is for, and nothing else."""

import tempfile
import unittest
from pathlib import Path

import tidy

CMAKE = """\
headrace_module(NAME base LINK xxhash)
headrace_module(NAME env DEPS base LINK Threads::Threads)
headrace_module(NAME page DEPS base)
headrace_module(NAME codec DEPS page base EXCLUDE "x")
headrace_module(NAME cli DEPS env base)
"""


class TidyTest(unittest.TestCase):
    def breaches(self, files: dict[str, str], cmake: str = CMAKE) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {"src/CMakeLists.txt": cmake, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found, warnings = tidy.check_tree(root)
            return [str(breach) for breach in found + warnings]

    def assert_clean(self, path: str, text: str) -> None:
        self.assertEqual(self.breaches({path: text}), [])

    def assert_breach(self, path: str, text: str, expected: str) -> None:
        found = self.breaches({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(expected, found[0])

    def test_arrows_are_read_from_cmake(self):
        self.assertEqual(
            tidy.read_arrows(CMAKE),
            {
                "base": set(),
                "env": {"base"},
                "page": {"base"},
                "codec": {"page", "base"},
                "cli": {"env", "base"},
            },
        )

    def test_an_include_along_an_arrow_is_fine(self):
        self.assert_clean("src/env/a.cc", '#include "base/hash.h"\n#include "env/a.h"\n')

    def test_an_include_against_an_arrow_is_found(self):
        self.assert_breach("src/base/a.cc", '#include "env/env.h"\n', "no arrow from base to env")

    def test_an_arrow_may_carry_one_header_only(self):
        self.assert_clean("src/codec/a.cc", '#include "page/shape.h"\n')
        self.assert_breach(
            "src/codec/a.cc", '#include "page/pool.h"\n', "only page/shape.h of page"
        )

    def test_a_test_may_use_env_and_vendors(self):
        for line in ('#include "env/env.h"\n', "#include <ggml.h>\n"):
            source = {"src/page/a.cc": "int x;\n"}
            self.assertEqual(self.breaches({**source, "src/page/a_test.cc": line}), [])
            self.assert_breach("src/page/a.cc", line, "env" if "env" in line else "belongs to")

    def test_arrows_must_not_form_a_circle(self):
        cmake = "headrace_module(NAME a DEPS b)\nheadrace_module(NAME b DEPS a)\n"
        self.assertEqual(
            self.breaches({}, cmake),
            ["src/CMakeLists.txt:1: a must stand below b, which it uses"],
        )

    def test_a_public_header_shows_nothing_private(self):
        self.assert_clean("include/headrace/a.h", '#pragma once\n#include "headrace/b.h"\n')
        self.assert_breach(
            "include/headrace/a.h", '#pragma once\n#include "base/hash.h"\n', "public header"
        )

    def test_a_vendor_header_stays_with_its_owner(self):
        self.assert_clean("src/cli/a.cc", "#include <nlohmann/json.hpp>\n")
        self.assert_clean("src/env/a.cc", '#include "base/log.h"\n')
        self.assert_breach("src/env/a.cc", "#include <llama.h>\n", "belongs to model and text")

    def test_the_world_is_reached_through_env(self):
        for line in (
            "#include <thread>",
            "std::thread worker;",
            "auto now = std::chrono::steady_clock::now();",
            "#include <fstream>",
            "#include <sys/mman.h>",
            "#include <sys/socket.h>",
            "#include <spawn.h>",
            "execv(path, arguments);",
            "std::random_device seed;",
            'std::getenv("HOME");',
        ):
            with self.subTest(line):
                self.assert_breach("src/page/a.cc", line + "\n", "outside src/env")
                self.assert_clean("src/env/a.cc", line + "\n")

    def test_the_world_may_be_spoken_of(self):
        self.assert_clean("src/page/a.cc", "int x;  // not a std::thread\n")

    def test_exceptions_are_by_file(self):
        self.assert_clean("src/base/log.cc", 'std::getenv("HEADRACE_LOG");\n')

    def test_a_unit_test_has_its_source(self):
        test = {"src/page/pool_test.cc": "int x;\n"}
        self.assertIn("no source", self.breaches(test)[0])
        self.assertEqual(self.breaches({**test, "src/page/pool.cc": "int y;\n"}), [])

    def test_a_source_may_have_several_tests(self):
        files = {"src/page/pool_pins_test.cc": "int x;\n", "src/page/pool.h": "#pragma once\n"}
        self.assertEqual(self.breaches(files), [])

    def test_a_todo_names_its_issue(self):
        self.assert_clean("src/page/a.cc", "// TODO(#12): merge\n")
        self.assert_breach("src/page/a.cc", "// TODO: merge\n", "name the issue")

    def test_text_rules(self):
        self.assert_clean("src/page/a.cc", "x" * 100 + "\n")
        self.assert_breach("src/page/a.cc", "x" * 101 + "\n", "101 characters")
        self.assert_breach("src/page/a.cc", "int\tx;\n", "tab")
        self.assert_breach("src/page/a.cc", "int x; \n", "blank at the end")
        self.assert_breach("src/page/a.cc", "int x;", "one newline")
        self.assert_breach("src/page/a.cc", "int x;\n\n", "one newline")

    def test_a_header_begins_with_pragma_once(self):
        self.assert_clean("src/page/a.h", "// What it is.\n#pragma once\n")
        self.assert_breach("src/page/a.h", "int x;\n", "#pragma once")

    def test_a_long_file_is_a_warning(self):
        self.assert_clean("src/page/a.cc", "int x;\n" * 700)
        self.assert_breach("src/page/a.cc", "int x;\n" * 701, "warning: 701 lines")


if __name__ == "__main__":
    unittest.main()
