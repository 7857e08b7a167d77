"""Forks processes from one that has imported everything: the imports of a node take longer than its start.

A request names a function, its arguments, folder and environment, and brings the descriptors of the process's pipes.
The template waits for its forks, since they are its children, and tells how each has ended. It ends with its socket.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import selectors
import signal
import socket
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Of the length in front of each request.
LENGTH_BYTES = 4
REQUEST_BYTES_MAX = 1 << 20
# stdin, stdout and stderr of the fork, and the pipe that tells its pid and its end.
DESCRIPTORS = 4


def serve(requests: socket.socket, failure: str = "") -> Callable[[], object] | None:
    """Forks for each request.

    Args:
        requests: The socket that requests come from.
        failure: Each request is refused with this reason, unless it is empty.

    Returns:
        In a fork, the function that it is to run. In the template, at the end of the socket, None.
    """
    endings: dict[int, int] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                _tell_endings(endings)
            if requests not in ready:
                continue
            data, descriptors = _receive(requests)
            if not data:
                _kill(endings)
                return None
            *pipes, ending = descriptors
            pid = 0 if failure else os.fork()
            if pid == 0 and not failure:
                break
            os.write(ending, f"{failure or pid}\n".encode())
            if failure:
                os.close(ending)
            else:
                endings[pid] = ending
            for pipe in pipes:
                os.close(pipe)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (requests.detach(), woken, wakes, ending, *endings.values()):
        os.close(descriptor)
    return _become(json.loads(data), pipes)


def _kill(pids: Iterable[int]) -> None:
    """Ends the forks that are left: a stopped one does not see that its stdin has ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Returns a request and its descriptors; no bytes at the end of the socket."""
    head, descriptors, _, _ = socket.recv_fds(requests, LENGTH_BYTES, DESCRIPTORS)
    if not head:
        return b"", []
    while len(head) < LENGTH_BYTES:
        head += requests.recv(LENGTH_BYTES - len(head))
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        more = requests.recv(size - len(data))
        if not more:
            return b"", []
        data += more
    return data, descriptors


def _tell_endings(endings: dict[int, int]) -> None:
    while endings:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with open(endings.pop(pid), "wb", 0) as ending, contextlib.suppress(BrokenPipeError):
            ending.write(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any], pipes: Sequence[int]) -> Callable[[], object]:
    """Makes this fork what a new process would be, and returns the function that it runs."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    # Those of the template may think that they can seek.
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]
        io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    )
    errors = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
        errors, errors="backslashreplace", line_buffering=True
    )
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    random.seed()
    module, _, name = request["runs"].partition(":")
    return partial(getattr(import_module(module), name), request["arguments"])


def load(modules: Sequence[str]) -> str:
    """Imports what the forks run, and lets each module that has a function ``prepare`` do so.

    Args:
        modules: Their names.

    Returns:
        Why that has failed; an empty string if it has not.
    """
    try:
        for name in modules:
            prepare = getattr(import_module(name), "prepare", None)
            if prepare is not None:
                prepare()
    except ImportError as error:
        return f"a node cannot be started ({error}): pip install 'tailrace[testing]'"
    gc.collect()
    gc.freeze()
    return ""


def main() -> None:
    """Serves requests until the socket ends, or runs the requested function if this is a fork.

    The arguments are the descriptor of the socket, a folder to import from or "", and the modules to load.
    """
    number, path, *modules = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:0] = filter(None, path.split(os.pathsep))
    failure = load(modules)
    with socket.socket(fileno=int(number)) as requests:
        run = serve(requests, failure)
    if run is not None:
        run()
