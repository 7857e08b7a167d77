"""A relay on trio that does nothing but what no durable feed can do without: the floor of redis_streams.py's latency.

A process takes bytes from a producer, appends them to a file, calls fdatasync, and sends them to a consumer and an
answer to the producer. No protocol, no checks, no seqs, nothing that survives a mistake.

    python bench/_relay.py serve PORT PATH      the first connection is the consumer's, the second the producer's
    python bench/_relay.py consume PORT COUNT   prints how long each message has taken
"""

from __future__ import annotations

import os
import socket
import sys
import time

import trio

STAMP_BYTES = 100
ANSWER_BYTES = 56
FILE_BYTES = 64 * 1024 * 1024
RECEIVE_BYTES = 16 * 1024


async def receive(sock: trio.socket.SocketType) -> bytes:
    """Some bytes; ``b""`` at the end."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        data = await sock.recv(RECEIVE_BYTES)
        return bytes(data)


async def serve(port: int, path: str) -> None:
    """Relays until the producer has gone."""
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(file, 0, FILE_BYTES)
    [listener] = await trio.open_tcp_listeners(port, host="127.0.0.1")
    consumer, producer = (await listener.accept()).socket, (await listener.accept()).socket
    for sock in (consumer, producer):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    offset = 0
    while data := await receive(producer):
        os.pwrite(file, data, offset)
        offset += len(data)
        os.fdatasync(file)
        await consumer.send(data)
        await producer.send(data[:ANSWER_BYTES])


async def consume(port: int, count: int) -> None:
    """Prints the nanoseconds from each message's stamp, its last bytes, to here."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    print("ready", flush=True)
    for _ in range(count):
        data = await receive(stream.socket)
        print(time.monotonic_ns() - int(data[-STAMP_BYTES:]), flush=True)


if __name__ == "__main__":
    what, port, argument = sys.argv[1:]
    if what == "serve":
        trio.run(serve, int(port), argument)
    else:
        trio.run(consume, int(port), int(argument))
