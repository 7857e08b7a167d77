"""Three members of an etcd on this machine, each a process of its own, and clients that put.

Debian, Ubuntu: sudo apt install etcd-server. The clients speak the JSON of its gateway over HTTP/1.1 connections that
stay open: what that costs by itself is measured by reads which no other member is asked for (``serializable``).
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from _server import free_port

START_SECONDS_MAX = 30.0
_RECEIVE_BYTES = 64 * 1024


@contextlib.contextmanager
def etcd(folder: Path, log: Path, members: int = 3) -> Iterator[int]:
    """A cluster of fresh data; gives the port at which its leader takes clients. Its fsyncs are as they come."""
    program = shutil.which("etcd")
    if program is None:
        sys.exit("etcd is not installed; Debian, Ubuntu: sudo apt install etcd-server")
    clients = [free_port() for _ in range(members)]
    peers = [free_port() for _ in range(members)]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            own = f"http://127.0.0.1:{client}"
            command = [program, "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")]
            command += ["--listen-client-urls", own, "--advertise-client-urls", own]
            command += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
            command += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", cluster]
            command += ["--initial-cluster-state", "new", "--logger", "zap", "--log-level", "warn"]
            process = subprocess.Popen(command, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield _leader(clients, log)


def _leader(ports: list[int], log: Path) -> int:
    """The port of the member that leads, once there is one and all answer."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, KeyError):
            told = [_post(port, "/v3/maintenance/status") for port in ports]
            leaders = [
                port
                for port, status in zip(ports, told, strict=True)
                if status["leader"] == status["header"]["member_id"]
            ]
            if leaders:
                return leaders[0]
        time.sleep(0.1)
    sys.exit(f"etcd has no leader after {START_SECONDS_MAX:g} s; its log {log} ends:\n{log.read_text()[-2_000:]}")


def _post(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", b"{}", timeout=2.0) as answer:
        return json.load(answer)


class Etcd:
    """A client on a connection of its own, one request at a time. An async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Etcd:
        self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    async def put(self, key: bytes, value: bytes) -> None:
        """Returns once a majority has it on its disks."""
        await self._ask("/v3/kv/put", {"key": _text(key), "value": _text(value)})

    async def look(self, key: bytes) -> None:
        """A read that the member answers by itself: what the way there and back costs."""
        await self._ask("/v3/kv/range", {"key": _text(key), "serializable": True})

    async def _ask(self, path: str, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        await self._stream.send_all(head.encode() + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._more()
        answer, _, rest = data.partition(b"\r\n\r\n")
        lines = answer.lower().split(b"\r\n")
        assert lines[0].split()[1] == b"200", data
        nbytes = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        while len(rest) < nbytes:
            rest += await self._more()

    async def _more(self) -> bytes:
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        assert data, "etcd has closed the connection"
        return bytes(data)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
