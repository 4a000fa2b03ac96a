"""Counts the instructions of a prompt and of decode steps, and compares them with counts.json.

Instructions, unlike seconds, are the same on a busy machine and on an idle one. They depend on the
compiler, so each major version has its own figures; where there are none, the test prints what it
has counted and is skipped. After a change that is meant to alter them: `make counts`.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STORED = pathlib.Path(__file__).with_name("counts.json")
# callgrind repeats to a few instructions; this is what compilers and C libraries of one major
# version may differ by.
TOLERANCE = 0.05
SKIPPED = 77  # SKIP_RETURN_CODE of the test


def count(program):
    """Instructions of each piece of work that `program` names."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([program, "write", directory], check=True)
        out = pathlib.Path(directory, "out")
        command = [
            "valgrind",
            "--tool=callgrind",
            "--quiet",
            "--toggle-collect=headrace_counted",
            "--dump-after=headrace_counted",
            f"--callgrind-out-file={out}",
            program,
            "run",
            directory,
        ]
        # Valgrind knows no AVX-512.
        environment = {**os.environ, "HEADRACE_FORCE_ISA": "avx2"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ran.returncode == SKIPPED:
            print(f"skipped: {ran.stderr.strip()}")
            sys.exit(SKIPPED)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {ran.returncode}:\n{ran.stderr}")
        names = ran.stdout.splitlines()
        counts = {}
        for number, name in enumerate(names, start=1):
            dump = pathlib.Path(f"{out}.{number}").read_text()
            counts[name] = int(re.search(r"^(?:summary|totals): (\d+)", dump, re.MULTILINE)[1])
        return counts


def compare(stored, counted):
    """Lines that say what differs by more than the tolerance."""
    problems = []
    for name in sorted(stored.keys() | counted.keys()):
        if name not in stored or name not in counted:
            where = "counts.json" if name in stored else "the program"
            problems.append(f"{name}: only in {where}")
            continue
        change = counted[name] / stored[name] - 1
        if abs(change) > TOLERANCE:
            problems.append(f"{name}: {stored[name]} -> {counted[name]} ({change:+.1%})")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="count_work")
    parser.add_argument("--compiler", required=True, help="name and major version, such as GNU-12")
    parser.add_argument("--update", action="store_true", help="store what is counted")
    arguments = parser.parse_args()

    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return SKIPPED
    counted = count(arguments.program)
    every = json.loads(STORED.read_text())
    if arguments.update:
        every[arguments.compiler] = counted
        STORED.write_text(json.dumps(every, indent=2, sort_keys=True) + "\n")
        print(f"stored the counts of {arguments.compiler}")
        return 0
    stored = every.get(arguments.compiler)
    if stored is None:
        print(f"skipped: counts.json has no figures of {arguments.compiler}; `make counts` adds:")
        print(json.dumps(counted, indent=2))
        return SKIPPED
    problems = compare(stored, counted)
    for name in sorted(counted):
        print(f"{name}: {counted[name]}")
    if problems:
        print(f"\nmore than {TOLERANCE:.0%} from counts.json; if that is meant: `make counts`")
        print("\n".join(problems))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
