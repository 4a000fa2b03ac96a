#!/usr/bin/env python3
"""Measures OpenVINO GenAI once, for `headrace bench`; prints one line of JSON.

    openvino_peer.py --model FILE --threads N --prompt-tokens N [--steps N]

Loading and compiling takes longer than most measurements, so a process makes one: a prompt that
warms up, then the measured one and `steps` tokens after its first. Both prompts are random, and
different, so that no part of one is found in a cache of the other.
"""

import argparse
import json
import random

import numpy
import openvino
import openvino_genai

FIRST_TOKEN = 100  # below are control tokens
LAST_TOKEN = 30_000  # every vocabulary has that many


def prompt(tokens: int, seed: int) -> openvino_genai.TokenizedInputs:
    numbers = random.Random(seed)
    ids = [numbers.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(tokens)]
    return openvino_genai.TokenizedInputs(
        openvino.Tensor(numpy.array([ids], dtype=numpy.int64)),
        openvino.Tensor(numpy.ones((1, tokens), dtype=numpy.int64)),
    )


def generate(pipeline: openvino_genai.LLMPipeline, tokens: int, new_tokens: int, seed: int):
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = new_tokens
    config.ignore_eos = True
    config.do_sample = False
    metrics = pipeline.generate(prompt(tokens, seed), config).perf_metrics
    if metrics.get_num_input_tokens() != tokens:
        raise SystemExit(f"read {metrics.get_num_input_tokens()} tokens instead of {tokens}")
    if metrics.get_num_generated_tokens() != new_tokens:
        raise SystemExit(f"wrote {metrics.get_num_generated_tokens()} instead of {new_tokens}")
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures OpenVINO GenAI once.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, default=0)
    arguments = parser.parse_args()

    pipeline = openvino_genai.LLMPipeline(
        arguments.model, "CPU", INFERENCE_NUM_THREADS=arguments.threads
    )
    generate(pipeline, min(arguments.prompt_tokens, 512), min(arguments.steps, 2) + 1, seed=1)
    metrics = generate(pipeline, arguments.prompt_tokens, arguments.steps + 1, seed=2)
    # Milliseconds: to the first token, and for each one after it.
    result = {
        "prefill_tokens_per_second": arguments.prompt_tokens / metrics.get_ttft().mean * 1000,
    }
    if arguments.steps > 0:
        result["decode_tokens_per_second"] = 1000 / metrics.get_tpot().mean
    print(json.dumps(result))


if __name__ == "__main__":
    main()
