"""A conversation of a session with a node whose frames are made by hand."""

import itertools

from tailrace.block import Block, encode_block
from tailrace.model import Level
from tailrace.requests.lane import Lane
from tailrace.requests.session import RequestSession
from tailrace.wire.bodies import decode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import Hello, HelloOk, Write, Written
from tailrace.wire.opcodes import Opcode

FEED = b"f" * 16

FEED = b"f" * 16
BRANCH = b"u" * 16
HELLO_OK = HelloOk(1, "0" * 32, "0" * 32, "", 1000, 10.0, ("memory", "disk"))


class Conversation:
    """A session and what a node would say to it. Answers are noted by name."""

    def __init__(self):
        self.now = 100.0
        self.session = RequestSession(Hello(), lambda: self.now)
        self.decoder = FrameDecoder()
        self.answers = {}
        ids = itertools.count(1)
        self.lanes = [Lane(FEED, number, lambda: next(ids)) for number in range(2)]

    def sent(self):
        return self.decoder.receive_data(b"".join(self.session.data_to_send()))

    def hear(self, *frames):
        self.session.receive_data(b"".join(frames))

    def greet(self):
        self.decoder = FrameDecoder()
        self.session.connection_made()
        assert [frame.opcode for frame in self.sent()] == [Opcode.HELLO]
        self.hear(HELLO_OK.encode())
        return self

    def note(self, name):
        def done(result, error):
            assert name not in self.answers
            self.answers[name] = result if error is None else error

        return done

    def call(self, name, *, seconds=10.0):
        self.session.call(Opcode.LIST_FEEDS, {"name": name}, self.note(name), self.now + seconds)

    def get(self, name, keys, *, seconds=10.0):
        self.session.get(FEED, Level.DISK, keys, self.note(name), self.now + seconds)

    def write(self, name, *, lane=0, seconds=10.0, **options):
        block = encode_block([name.encode()], [b"v"], partition=lane)
        self.session.write(self.lanes[lane], block, Level.DISK, self.note(name), self.now + seconds, **options)


def name_of(frame):
    """What a frame asks for, by the name that the conversation gave it."""
    if frame.opcode is Opcode.WRITE:
        write = Write.decode(frame.body)
        header = Block.parse(write.block).header
        return (Block.parse(write.block).columns().keys()[0].decode(), header.producer_seq, write.flags)
    return decode_json(frame.body, "")["name"]


def written(frame, seq=1):
    is_write = frame.opcode is Opcode.WRITE
    partition = Block.parse(Write.decode(frame.body).block).header.partition if is_write else 0
    return Written(partition, BRANCH, seq, seq).encode(frame.id)


def placed(state, role="leader", check=lambda _: None):
    """A session that asks for ``state`` and has met a node that is ``role``."""
    made = Conversation()
    made.session = RequestSession(Hello(), lambda: made.now, state=state, check=check)
    made.session.connection_made()
    made.sent()
    made.hear(HELLO_OK._replace(role=role).encode())
    return made
