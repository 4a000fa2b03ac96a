#!/usr/bin/env python3
"""The main job, shown: a model reads a text whose KV is eight times the memory that it gets.

    tools/demo.py [--headrace PROGRAM] [--model FILE] [--threads N]

Reads licence texts of the system and answers a question about them, twice: with all keys and
values in memory, then with an eighth of that and the rest on disk. Exits with 1 unless both give
the same tokens.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LICENSES = Path("/usr/share/common-licenses")
SOURCES = ("GPL-3", "Apache-2.0")  # the second only where the first is shorter than it was
TEXT_BYTES = 34_000  # between 7,000 tokens and what SmolLM2's context of 8,192 leaves
QUESTION = "Who wrote this licence, and why?"
CONTEXT = 8192
ANSWER_TOKENS = 64
MEMORY_FRACTION = 8


def read_text() -> str:
    files = [LICENSES / name for name in SOURCES]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        sys.exit(f"demo: no {', '.join(missing)}: expected the licence texts of a Debian system")
    text = "\n".join(path.read_text() for path in files)
    return text[: text.rindex("\n", 0, TEXT_BYTES) + 1]


def run(arguments: argparse.Namespace, text: Path, extra: list[str]) -> dict:
    """Runs `headrace run`, whose progress and answer are shown as they come."""
    command = [str(arguments.headrace), "run", "--json", "-m", str(arguments.model)]
    command += ["-f", str(text), "-p", QUESTION, "-n", str(ANSWER_TOKENS)]
    command += ["--context", str(CONTEXT), "--temperature", "0", *extra]
    if arguments.threads:
        command += ["--threads", str(arguments.threads)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"demo: failed with exit code {result.returncode}: {' '.join(command)}")
    return json.loads(result.stdout)


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def table(full: dict, small: dict, limit: int) -> list[tuple[str, str, str]]:
    def both(label: str, show) -> tuple[str, str, str]:
        return (label, show(full), show(small))

    return [
        ("", "all in memory", f"1/{MEMORY_FRACTION} in memory"),
        both("prompt tokens", lambda r: f"{r['prompt_tokens']:,}"),
        both("answer tokens", lambda r: f"{len(r['tokens']):,}"),
        both("KV needed", lambda r: mebibytes(r["kv_bytes_needed"])),
        ("KV memory allowed", "no limit", mebibytes(limit)),
        both("KV memory used", lambda r: mebibytes(r["kv_bytes_peak"])),
        both("pages filled from disk", lambda r: f"{r['pages_filled']['disk']:,}"),
        both("prefill", lambda r: f"{r['prefill_tokens_per_second']:.0f} tok/s"),
        both("decode", lambda r: f"{r['decode_tokens_per_second']:.1f} tok/s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="The main job, shown.")
    parser.add_argument("--headrace", type=Path, default=ROOT / "build/release/headrace")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        text = Path(folder) / "licences.txt"
        text.write_text(read_text())
        print(f"demo: {QUESTION} (of {text.stat().st_size:,} bytes of licences)")
        print("\ndemo: everything in memory", flush=True)
        full = run(arguments, text, [])
        limit = full["kv_bytes_needed"] // MEMORY_FRACTION // 1024 * 1024
        print(f"\ndemo: the same with --kv-memory {limit // 1024}KiB", flush=True)
        small = run(
            arguments,
            text,
            ["--kv-memory", f"{limit // 1024}KiB", "--kv-disk", f"{folder}/kv"],
        )

    same = small["tokens"] == full["tokens"] and small["text"] == full["text"]
    within = small["kv_bytes_peak"] <= limit
    print()
    for row in table(full, small, limit):
        print("  {:<24}{:>16}{:>16}".format(*row).rstrip())
    print(f"\n  same tokens as with everything in memory: {'yes' if same else 'NO'}")
    if not within:
        print(f"  KV memory stayed within its limit: NO ({mebibytes(small['kv_bytes_peak'])})")
    return 0 if same and within else 1


if __name__ == "__main__":
    sys.exit(main())
