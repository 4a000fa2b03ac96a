#!/usr/bin/env python3
"""Checks the rules of the house that no compiler checks.

    tools/tidy.py [ROOT]

Prints each breach as `file:line: what is wrong` and exits with 1 if there is one. Rules:

layers    An include of src/ follows an arrow: the DEPS of a module in src/CMakeLists.txt. Modules
          stand there in order, so that arrows point up only. Some arrows carry one header only.
          A test may also use env, which has the threads and the directories.
vendors   A library of others is included by the modules that own it, and by tests.
world     Threads, clocks, files, programs, sockets, randomness and the environment are reached
          through src/env, so that every fault and schedule can be a test.
tests     A test in src/ stands beside its source and is named after it.
todo      A TODO names its issue: TODO(#12).
text      Lines have at most 100 characters, no tabs and no blanks at their end; a file ends with
          one newline; a header begins with `#pragma once`, after its comment.
size      A file above 700 lines gets a warning.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_COLUMNS = 100
MAX_LINES = 700

FOLDERS = ("src", "include", "tests", "tools", "bench", "cmake", ".ci")
CPP = {".cc", ".h"}
CODE = CPP | {".py", ".sh", ".cmake"}
CODE_NAMES = {"CMakeLists.txt", "Makefile", "run"}
# The only files whose subject is the words that the rules look for.
EXEMPT = {"tools/tidy.py", "tools/tidy_test.py"}

# Arrows that carry less than the whole module.
NARROW_ARROWS = {
    ("codec", "page"): {"page/shape.h"},
    ("policy", "page"): {"page/shape.h"},
    ("tier", "codec"): {"codec/codec.h", "codec/group_layout.h", "codec/sealed_page.h"},
    ("tier", "page"): {"page/shape.h"},
    ("cli", "tier"): {"tier/scrub.h", "tier/tier_limits.h"},
    ("cli", "index"): {"index/block_index.h"},  # what finding a prefix costs, for the benchmark
    ("runtime", "page"): {"page/shape.h"},
    ("cli", "kernel"): {"kernel/kernels.h"},  # the limits of the machine, for the benchmark
    # headrace trace replay, and what the command line sees in a text
    ("cli", "policy"): {
        "policy/repetition.h",
        "policy/token_weights.h",
        "policy/topic_shift.h",
        "policy/trace_replay.h",
    },
}

# Which modules may include which foreign headers.
VENDORS = {
    r"(llama|ggml.*|gguf|common|chat|sampling|log)\.h$": {"model", "text"},
    r"CLI/": {"cli"},
    r"nlohmann/": {"cli"},
    r"xxh": {"base"},
    r"liburing": {"env"},
}

# The outside world, and the files that may touch a part of it.
WORLD = {
    "threads": r"#include <(thread|future|pthread\.h)>|\bstd::(jthread|thread|async)\b",
    "clocks": r"#include <(ctime|time\.h)>|_clock::now|\b(clock_gettime|gettimeofday)\(",
    "files": r"#include <(fstream|filesystem|fcntl\.h|sys/stat\.h|dirent\.h)>|\bfopen\(",
    "memory maps": r"#include <sys/mman\.h>",
    "programs": r"#include <(spawn|sys/wait)\.h>|[=(]\s*(::)?v?fork\(|"
    r"\b(execvp?e?|popen|posix_spawnp?)\(",
    "sockets": r"#include <(sys/socket\.h|netdb\.h|netinet/.*|arpa/.*|poll\.h)>",
    "randomness": r"\bstd::random_device\b|\b(s?rand|getrandom)\(",
    "environment": r"\bgetenv\(",
}
WORLD_EXCEPTIONS = {
    ("src/base/aligned_buffer.cc", "memory maps"),  # anonymous memory, no file
    ("src/base/log.cc", "environment"),  # HEADRACE_LOG
    ("src/kernel/dispatch.cc", "environment"),  # HEADRACE_FORCE_ISA
}


class Breach(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def read_arrows(cmake: str) -> dict[str, set[str]]:
    """The modules of src/CMakeLists.txt, in order, with the modules that each may include."""
    arrows = {}
    for arguments in re.findall(r"headrace_module\(([^)]*)\)", cmake):
        name = re.search(r"NAME (\w+)", arguments).group(1)
        deps = re.search(r"DEPS ([\w\s]+?)\s*(?:TEST_LINK|LINK|EXCLUDE|$)", arguments)
        arrows[name] = set(deps.group(1).split()) if deps else set()
    return arrows


def check_arrows(arrows: dict[str, set[str]]) -> Iterator[Breach]:
    above = set()
    for module, deps in arrows.items():
        for dep in sorted(deps - above):
            yield Breach("src/CMakeLists.txt", 1, f"{module} must stand below {dep}, which it uses")
        above.add(module)


def module_of(path: str) -> str | None:
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def check_include(path: str, header: str, arrows: dict[str, set[str]]) -> str | None:
    module = module_of(path)
    folder = header.split("/")[0]
    is_test = path.endswith("_test.cc")
    if path.startswith("include/") and folder in arrows:
        return f"a public header includes {header}"
    if module is None:
        return None
    if folder in arrows and folder != module:
        if folder not in arrows.get(module, set()) and not (is_test and folder == "env"):
            return f"no arrow from {module} to {folder}: {header}"
        narrow = NARROW_ARROWS.get((module, folder))
        if narrow and header not in narrow:
            return f"{module} may include only {', '.join(sorted(narrow))} of {folder}: {header}"
    if "/" not in header or folder not in arrows:
        for pattern, owners in VENDORS.items():
            if re.match(pattern, header) and module not in owners and not is_test:
                return f"{header} belongs to {' and '.join(sorted(owners))}"
    return None


def check_includes(path: str, lines: list[str], arrows: dict[str, set[str]]) -> Iterator[Breach]:
    for number, line in enumerate(lines, 1):
        match = re.match(r'#include ["<]([^">]+)[">]', line)
        if match and (text := check_include(path, match.group(1), arrows)):
            yield Breach(path, number, text)


def check_world(path: str, lines: list[str]) -> Iterator[Breach]:
    if module_of(path) in (None, "env") or path.endswith("_test.cc"):
        return
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]
        for what, pattern in WORLD.items():
            if re.search(pattern, code) and (path, what) not in WORLD_EXCEPTIONS:
                yield Breach(path, number, f"{what} outside src/env: go through Env")


def check_test_has_source(path: str, all_paths: set[str]) -> Iterator[Breach]:
    """disk_tier_recovery_test.cc may test disk_tier.cc: a source's name begins the test's."""
    if module_of(path) is None or not path.endswith("_test.cc"):
        return
    stem = path.removesuffix("_test.cc")
    while stem.split("/")[-1]:
        if any(stem + suffix in all_paths for suffix in (".cc", ".h", "-inl.h")):
            return
        stem = stem.rpartition("_")[0]
    yield Breach(path, 1, "no source of this name beside the test")


def check_todo(path: str, lines: list[str]) -> Iterator[Breach]:
    for number, line in enumerate(lines, 1):
        if re.search(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", line):
            yield Breach(path, number, "name the issue: TODO(#12)")


def check_text(path: str, text: str, lines: list[str]) -> Iterator[Breach]:
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield Breach(path, number, f"{len(line)} characters, more than {MAX_COLUMNS}")
        if "\t" in line and not path.endswith("Makefile"):
            yield Breach(path, number, "tab")
        if line != line.rstrip():
            yield Breach(path, number, "blank at the end of the line")
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        yield Breach(path, len(lines), "must end with one newline")
    if path.endswith(".h"):
        first = next((line for line in lines if line and not line.startswith("//")), "")
        if first != "#pragma once":
            yield Breach(path, 1, "a header begins with #pragma once")


def find_files(root: Path) -> Iterator[Path]:
    yield from (root / name for name in ("CMakeLists.txt", "Makefile") if (root / name).exists())
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and (path.suffix in CODE or path.name in CODE_NAMES):
                yield path


def check_tree(root: Path) -> tuple[list[Breach], list[Breach]]:
    """All breaches and all warnings."""
    cmake = root / "src" / "CMakeLists.txt"
    arrows = read_arrows(cmake.read_text()) if cmake.exists() else {}
    breaches = list(check_arrows(arrows))
    warnings = []
    files = {path.relative_to(root).as_posix(): path for path in find_files(root)}
    for name, path in files.items():
        text = path.read_text()
        lines = text.splitlines()
        breaches += check_text(name, text, lines)
        if len(lines) > MAX_LINES:
            warnings.append(Breach(name, MAX_LINES, f"warning: {len(lines)} lines; split it"))
        if name not in EXEMPT:
            breaches += check_todo(name, lines)
        if path.suffix in CPP:
            breaches += check_includes(name, lines, arrows)
            breaches += check_world(name, lines)
            breaches += check_test_has_source(name, set(files))
    return breaches, warnings


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    breaches, warnings = check_tree(root)
    for breach in breaches + warnings:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
