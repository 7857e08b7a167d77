"""The command ``tailrace``, as a process of a test has it.

    python node_process.py '{"4701": 30001}' serve --data DIR --listen 127.0.0.1:4700 --members ...

It is the command itself but for three things: connections to the ports that the first argument names go to other ports,
where the test has put a network that breaks; write queues, segments and files of the journal are small, so that all of
them come and go in a minute; and it ends when its stdin does, so that none is left where the test is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading

import trio

from tailrace import cli
from tailrace_server import command, start
from tailrace_server.config import Storage

STORAGE = Storage(segment_bytes=64 * 1024, flush_age_s=2.0, journal_file_bytes_max=512 * 1024, reserve_bytes=256 * 1024)


def through(routes):
    """Lets every connection to a port of ``routes`` go to another one."""
    connect = trio.open_tcp_stream

    async def open_tcp_stream(host, port, **kwargs):
        return await connect(host, routes.get(port, port), **kwargs)

    trio.open_tcp_stream = open_tcp_stream


@contextlib.asynccontextmanager
async def open_small(config):
    async with start.open_node(dataclasses.replace(config, storage=STORAGE)) as node:
        yield node


def end_with_stdin():
    os.read(0, 1)
    os._exit(1)


def main(routes, arguments):
    threading.Thread(target=end_with_stdin, daemon=True).start()
    through(routes)
    command.open_node = open_small
    sys.argv = ["tailrace", *arguments]
    cli.main()


if __name__ == "__main__":
    main({int(port): other for port, other in json.loads(sys.argv[1]).items()}, sys.argv[2:])
