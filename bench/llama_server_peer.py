#!/usr/bin/env python3
"""Measures a restart of llama.cpp's server, for `headrace bench --store`; prints one line of JSON.

    llama_server_peer.py --server FILE --model FILE --threads N --prompt FILE --slots DIR

One server reads the prompt (a JSON list of tokens) and saves its slot in DIR. A second one restores
the slot and draws the first token; the time of these two calls is the result.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

CONTEXT = 8192  # has room for the prompt of every run
START_SECONDS = 300
CALL_SECONDS = 3600
SLOT_FILE = "slot"


class Server:
    """llama-server with one slot, on this machine only; ends with the `with` block."""

    def __init__(self, arguments: argparse.Namespace):
        self.log_path = os.path.join(arguments.slots, "server.log")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [
            *(arguments.server, "--model", arguments.model, "--threads", str(arguments.threads)),
            *("--ctx-size", str(CONTEXT), "--parallel", "1", "--gpu-layers", "0"),
            *("--slot-save-path", arguments.slots),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"llama-server ended while it started: {self.last_words()}")
            try:
                self.call("GET", "/health")
                return
            except OSError:
                pass  # it does not listen yet, or says that it is loading
            time.sleep(0.05)
        raise SystemExit(f"llama-server was not ready after {START_SECONDS} s")

    def last_words(self) -> str:
        with open(self.log_path, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def call(self, method: str, path: str, body: bytes = b"") -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        finally:
            connection.close()
        if response.status != 200:
            raise OSError(f"{path} was answered with {response.status}: {text.strip()}")
        return json.loads(text)


def measure(arguments: argparse.Namespace) -> dict:
    with open(arguments.prompt) as file:
        prompt = json.load(file)
    if len(prompt) >= CONTEXT:
        raise SystemExit(f"{len(prompt)} tokens do not fit into a context of {CONTEXT}")
    completion = json.dumps(
        {"prompt": prompt, "n_predict": 1, "cache_prompt": True, "id_slot": 0, "temperature": 0}
    ).encode()
    slot = json.dumps({"filename": SLOT_FILE}).encode()

    with Server(arguments) as server:
        start = time.monotonic()
        server.call("POST", "/completion", completion)
        read_seconds = time.monotonic() - start
        server.call("POST", "/slots/0?action=save", slot)
    with Server(arguments) as server:
        start = time.monotonic()
        server.call("POST", "/slots/0?action=restore", slot)
        answer = server.call("POST", "/completion", completion)
        restart_seconds = time.monotonic() - start
    # At least one token has to be computed, for its logits.
    computed = answer["timings"]["prompt_n"]
    if computed > len(prompt) // 16:
        raise SystemExit(f"it computed {computed} of {len(prompt)} tokens again")
    return {
        "read_seconds": read_seconds,
        "restart_seconds": restart_seconds,
        "computed_tokens": computed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a restart of llama.cpp's server.")
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--slots", required=True)
    arguments = parser.parse_args()
    # So that the server ends when this is told to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        print(json.dumps(measure(arguments)))
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"llama-server: {error}") from error


if __name__ == "__main__":
    main()
