"""A node that requires tokens, and raw requests with any token."""

from contextlib import asynccontextmanager

import trio
from tests.conftest import RawClient

import tailrace
from tailrace.wire.bodies import encode_json
from tailrace.wire.messages import Hello, decode_error
from tailrace.wire.opcodes import Opcode


class Secured:
    """A node with ``--auth``, and its admin token."""

    def __init__(self, running):
        self.running = running
        self.url = running.url

    @property
    def admin(self):
        with open(f"{self.running.config.data}/admin.token") as file:
            return file.read().strip()

    def connect(self, token=None, **options):
        return tailrace.connect(self.url, token=token, **{"retry_for": 60} | options)

    async def token(self, name, role, **options):
        async with self.connect(self.admin) as client:
            return await client.create_token(name, role=role, **options)

    @asynccontextmanager
    async def raw(self, token=None, **hello):
        """A connection that has sent HELLO with ``token``, and has HELLO_OK."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.running.config.listen[1])
        async with stream:
            connection = RawClient(stream)
            await connection.send(Hello(token=token, **hello).encode())
            frame = await connection.receive()
            if frame.opcode is Opcode.ERROR:
                raise decode_error(frame.body)
            yield connection


class SecuredByTls(Secured):
    """A node with tokens and TLS."""

    def __init__(self, running, authority):
        super().__init__(running)
        self._authority = authority

    def connect(self, token=None, **options):
        return super().connect(token, **{"tls": self._authority.client()} | options)


async def ask(connection, opcode, value, id=9):
    """The answer to a JSON request: an error, or the frame."""
    await connection.send(encode_json(opcode, value, id))
    frame = await connection.receive()
    return decode_error(frame.body) if frame.opcode is Opcode.ERROR else frame
