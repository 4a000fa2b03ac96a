#!/usr/bin/env python3
"""Runs llama_server_peer.py on a server that only remembers what it was asked."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_server_peer.py")

# Notes its process, its arguments and every call in the folder of the slots.
SERVER = """
import http.server, json, os, sys, time

def argument(name):
    return sys.argv[sys.argv.index(name) + 1]

def note(*what):
    with open(os.path.join(argument("--slot-save-path"), "notes"), "a") as notes:
        notes.write(json.dumps(what) + "\\n")

class Handler(http.server.BaseHTTPRequestHandler):
    loading = True

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer(503 if Handler.loading else 200, {"path": self.path})
        Handler.loading = False

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note(os.getpid(), self.path, body)
        if BEHAVIOUR == "hang":
            time.sleep(60)
        self.answer(500 if BEHAVIOUR == "refuse" else 200, {"timings": {"prompt_n": AGAIN}})

    def log_message(self, *_):
        pass

if BEHAVIOUR == "die":
    sys.exit("error: no such model")
note(os.getpid(), "start", sys.argv[1:])
address = (argument("--host"), int(argument("--port")))
http.server.HTTPServer(address, Handler).serve_forever()
"""


class LlamaServerPeer(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.prompt = list(range(200))
        with open(self.path("prompt.json"), "w") as file:
            json.dump(self.prompt, file)

    def path(self, name: str) -> str:
        return os.path.join(self.folder.name, name)

    def start(self, behaviour: str = "", again: int = 1) -> subprocess.Popen:
        with open(self.path("server"), "w") as file:
            file.write(f"#!{sys.executable}\nBEHAVIOUR = {behaviour!r}\nAGAIN = {again}\n{SERVER}")
        os.chmod(self.path("server"), 0o700)
        return subprocess.Popen(
            [sys.executable, PEER, "--server", self.path("server"), "--model", "m.gguf"]
            + ["--threads", "3", "--prompt", self.path("prompt.json"), "--slots", self.folder.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def notes(self) -> list:
        if not os.path.exists(self.path("notes")):
            return []
        with open(self.path("notes")) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def expect_ended(self):
        for process in {note[0] for note in self.notes()}:
            with self.assertRaises(ProcessLookupError):
                os.kill(process, 0)

    def test_the_second_server_restores_what_the_first_one_saved(self):
        out, err = self.start().communicate(timeout=60)
        result = json.loads(out)
        self.assertGreater(result["read_seconds"], 0, err)
        self.assertGreater(result["restart_seconds"], 0)
        first, read, save, second, restore, again = self.notes()
        self.assertEqual(
            [read[1], save[1], restore[1], again[1]],
            ["/completion", "/slots/0?action=save", "/slots/0?action=restore", "/completion"],
        )
        self.assertEqual([first[0], second[0]], [save[0], restore[0]])
        self.assertNotEqual(first[0], second[0])
        self.assertEqual(save[2], restore[2])
        self.assertEqual(read[2]["prompt"], self.prompt)
        self.assertEqual(read[2], again[2])
        self.assertEqual(read[2]["n_predict"], 1)
        self.assertIs(read[2]["cache_prompt"], True)
        arguments = first[2]
        self.assertEqual(arguments[arguments.index("--host") + 1], "127.0.0.1")
        self.assertEqual(arguments[arguments.index("--threads") + 1], "3")
        self.assertEqual(arguments[arguments.index("--parallel") + 1], "1")
        self.expect_ended()

    def test_a_prompt_that_is_read_again_is_no_restart(self):
        _, err = self.start(again=150).communicate(timeout=60)
        self.assertIn("it computed 150 of 200 tokens again", err)
        self.expect_ended()

    def test_a_server_that_refuses_ends_it_with_its_reason(self):
        peer = self.start(behaviour="refuse")
        _, err = peer.communicate(timeout=60)
        self.assertEqual(peer.returncode, 1)
        self.assertIn("/completion was answered with 500", err.splitlines()[-1])
        self.expect_ended()

    def test_a_server_that_does_not_start_ends_it_with_its_last_words(self):
        _, err = self.start(behaviour="die").communicate(timeout=60)
        self.assertIn("llama-server ended while it started: error: no such model", err)

    def test_the_server_ends_when_the_peer_is_told_to(self):
        peer = self.start(behaviour="hang")
        while not any(note[1] == "/completion" for note in self.notes()):
            time.sleep(0.02)
        peer.send_signal(signal.SIGTERM)
        peer.communicate(timeout=60)
        self.assertEqual(peer.returncode, 143)
        self.expect_ended()


if __name__ == "__main__":
    unittest.main()
