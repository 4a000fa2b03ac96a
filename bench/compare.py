#!/usr/bin/env python3
"""Measures headrace against llama.cpp's llama-bench, from the same pinned source, in one run.

The two take turns on every workload, so that a slow spell of the machine meets both; what counts
is the ratio of the medians. Everything is in memory, both use the same number of threads.

  make bench
  bench/compare.py [--headrace FILE] [--llama-bench FILE] [--model FILE] [--rounds 3] [--quick]
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name, tokens read before the measured part, measured tokens
PREFILL = [("prefill-512", 512), ("prefill-2048", 2048)]
DECODE = [("decode-16", 16, 64), ("decode-2048", 2048, 64), ("decode-8192", 8128, 64)]
QUICK = {"prefill-512", "decode-16"}


def run(command):
    """Runs a command and returns its standard output; ends with its errors when it fails."""
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stderr}")
    return result.stdout


class Headrace:
    name = "headrace"

    def __init__(self, options):
        self.options = options

    def measure(self, prompt_tokens, new_tokens):
        # " the" is one token of SmolLM2's vocabulary, so the prompt has exactly the wanted length.
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(" the" * prompt_tokens)
            text.flush()
            summary = json.loads(
                run(
                    [
                        self.options.headrace,
                        "run",
                        "-m",
                        self.options.model,
                        "--raw",
                        "-f",
                        text.name,
                        "-n",
                        str(max(new_tokens, 1)),
                        "--ignore-eos",
                        "--threads",
                        str(self.options.threads),
                        "--json",
                    ]
                )
            )
        if summary["prompt_tokens"] != prompt_tokens:
            sys.exit(f"the prompt has {summary['prompt_tokens']} tokens instead of {prompt_tokens}")
        return summary

    def prefill(self, tokens):
        return self.measure(tokens, 0)["prefill_tokens_per_second"]

    def decode(self, depth, tokens):
        return self.measure(depth, tokens)["decode_tokens_per_second"]


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, options):
        self.options = options

    def measure(self, *arguments):
        output = run(
            [
                self.options.llama_bench,
                "-m",
                self.options.model,
                "-t",
                str(self.options.threads),
                "-ngl",
                "0",
                "-r",
                "1",
                "-o",
                "json",
                *arguments,
            ]
        )
        return json.loads(output)[-1]["avg_ts"]

    def prefill(self, tokens):
        return self.measure("-p", str(tokens), "-n", "0")

    def decode(self, depth, tokens):
        return self.measure("-p", "0", "-n", str(tokens), "-d", str(depth))


def compare(engines, measure, rounds):
    """Tokens per second of each engine in turns; the first turn of each is a warm-up."""
    samples = {engine.name: [] for engine in engines}
    for turn in range(rounds + 1):
        for engine in engines:
            speed = measure(engine)
            if turn > 0:
                samples[engine.name].append(speed)
    return samples


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--headrace", default=ROOT / "build/bench/headrace")
    parser.add_argument("--llama-bench", default=ROOT / "build/bench/llama-bench")
    parser.add_argument("--model", default=ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only " + ", ".join(sorted(QUICK)))
    parser.add_argument(
        "--output", type=pathlib.Path, help="also write the figures to this JSON file"
    )
    options = parser.parse_args()

    engines = [Headrace(options), LlamaCpp(options)]
    workloads = [(name, lambda e, n=tokens: e.prefill(n)) for name, tokens in PREFILL]
    workloads += [
        (name, lambda e, d=depth, n=tokens: e.decode(d, n)) for name, depth, tokens in DECODE
    ]
    results = []
    print("| workload | headrace tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|", flush=True)
    for name, measure in workloads:
        if options.quick and name not in QUICK:
            continue
        samples = compare(engines, measure, options.rounds)
        medians = {engine: statistics.median(values) for engine, values in samples.items()}
        ratio = medians["headrace"] / medians["llama.cpp"]
        cells = [f"{medians[e]:.1f} ({min(v):.1f} to {max(v):.1f})" for e, v in samples.items()]
        print(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |", flush=True)
        results += [
            {"workload": name, "engine": e, "tokens_per_second": medians[e], "samples": v}
            for e, v in samples.items()
        ]
    if options.output:
        machine = {"cpu": cpu_name(), "threads": options.threads, "system": platform.platform()}
        options.output.write_text(
            json.dumps({"machine": machine, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
