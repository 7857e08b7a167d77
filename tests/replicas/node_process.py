"""The command ``tailrace``, as a process of a test has it.

    python node_process.py '{"routes": {"4701": 30001}, "bug": ""}' serve --data DIR --listen 127.0.0.1:4700 ...

It is the command itself but for what the first argument, a JSON object of ``Orders``, says; write queues, segments and
files of the journal are small, so that all of them come and go in a minute; and it ends when its stdin does, so that
none is left where the test is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from typing import NamedTuple

import trio

from tailrace import cli
from tailrace_server.config import StorageConfig
from tailrace_server.node import command, start
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.read_index import Confirmations

STORAGE = StorageConfig(
    segment_bytes=64 * 1024, flush_age_s=2.0, journal_file_bytes_max=512 * 1024, reserve_bytes=256 * 1024
)


class Orders(NamedTuple):
    """``routes``: connections to these ports go to others, where the test has put a network that breaks.

    ``bug``: one of ``BUGS``.
    """

    routes: dict[str, int]
    bug: str = ""


def through(routes):
    """Lets every connection to a port of ``routes`` go to another one."""
    connect = trio.open_tcp_stream

    async def open_tcp_stream(host, port, **kwargs):
        return await connect(host, routes.get(str(port), port), **kwargs)

    trio.open_tcp_stream = open_tcp_stream


@contextlib.asynccontextmanager
async def open_small(config):
    async with start.open_node(dataclasses.replace(config, storage=STORAGE)) as node:
        yield node


# Bugs, to see that the test finds them.


def quorum_at_once():
    Acknowledgements.quorum_seq = lambda self, durable_seq, log: durable_seq


def leads_unasked():
    Confirmations.confirm = lambda self, callback: callback(None)


BUGS = {bug.__name__: bug for bug in (quorum_at_once, leads_unasked)}


def end_with_stdin():
    os.read(0, 1)
    os._exit(1)


def main(orders, arguments):
    threading.Thread(target=end_with_stdin, daemon=True).start()
    through(orders.routes)
    if orders.bug:
        BUGS[orders.bug]()
    command.open_node = open_small
    sys.argv = ["tailrace", *arguments]
    cli.main()


if __name__ == "__main__":
    main(Orders(**json.loads(sys.argv[1])), sys.argv[2:])
