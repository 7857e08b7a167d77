"""A real etcd in a process of its own, and programs that play a bad one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from tailrace.testing.ports import free_port

INSTALL = "apt-get install etcd-server"
START_S = 30.0


def require_etcd():
    """Skips the test if there is no etcd, by the name of the command that installs it."""
    if shutil.which("etcd") is None:
        pytest.skip(f"needs etcd: {INSTALL}")


class Etcd:
    """One member of etcd over a directory. It keeps its ports over restarts."""

    def __init__(self, directory, *options, scheme="http"):
        self.directory = directory
        self.options = options
        self.scheme = scheme
        self.port = free_port()
        self._peer_port = free_port()
        self._process = None

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        client, peer = f"{self.scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(
                [
                    *("etcd", "--data-dir", str(self.directory), "--unsafe-no-fsync"),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"default={peer}", "--logger", "zap", *self.options),
                ],
                stdout=log,
                stderr=log,
            )
        return self

    def wait(self):
        """Waits until it answers; of one with TLS or users, until it listens."""
        ends = time.monotonic() + START_S
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                if self.ask("kv/range", {"key": "YQ=="})[0]:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"etcd does not answer: see {self.directory.with_suffix('.log')}")

    def ask(self, path, body, context=None):
        """Returns the status and the JSON of an answer, as an administrator would see it."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.scheme}://{self.endpoint}/v3/{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")

    def signal(self, number):
        """Sends a signal; SIGSTOP returns once the process is stopped, which takes a while on a busy machine."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitpid(self._process.pid, os.WUNTRACED)

    def stop(self):
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None
