"""This program understands peers of a later release: they speak more versions, and say more than it knows."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio
from tests.golden import client_sessions
from tests.golden.fake_node import play_sdk
from tests.golden.record import PLAYS, known_texts, open_stage
from tests.golden.recording import BACK, THERE, Session, sessions_of
from tests.golden.replay import play_requests
from tests.tailrace_server.replication.made_set import numbered, publish_one, put

from tailrace.wire import messages
from tailrace.wire.bodies import encode_json
from tailrace.wire.messages import HelloOk
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving import member_requests

RELEASE = "0.2"
# A later release may add such members to every object; a reader ignores them.
LATER = {"of_a_later_release": [1, {"more": None}]}
# Members of objects whose keys are names or numbers, which have no members of their own; those of a filter count.
NAMES = {"seqs", "known", "filter", "value", "generations", "held"}
# What a later release states in its greeting, and what an earlier one left out.
OPTIONAL = (
    "window_bytes",
    "role",
    "term",
    "leader",
    "cluster",
    "default_level",
    "takes_stream_credit",
    "takes_traces",
)

pytestmark = pytest.mark.slow


def extended(value, name=""):
    """A JSON value in whose objects a later release has members of its own."""
    if isinstance(value, list):
        return [extended(each, name) for each in value]
    if not isinstance(value, dict) or name in NAMES:
        return value
    return {**{member: extended(each, member) for member, each in value.items()}, **LATER}


def of_a_later_release(session, way):
    """The session, in which one side says more than 0.2 knows, and states versions 1 and 2."""
    frames = []
    for frame in session.frames:
        value = json_of(frame) if frame.way == way else None
        if value is not None:
            value = extended(value)
            if frame.name == "HELLO":
                value["versions"] = [*value["versions"], 2]
            frame = frame._replace(body=json.dumps(value).encode())
        frames.append(frame)
    return session._replace(frames=frames)


def json_of(frame):
    """The JSON object in a frame; None if there is none."""
    if not frame.body.startswith(b"{") or (frame.name == "HELLO" and b"99" in frame.body[:20]):
        return None
    return json.loads(frame.body)


@pytest.mark.parametrize("name", PLAYS)
async def test_a_node_answers_a_later_client(name, tmp_path):
    session = of_a_later_release(Session.load(sessions_of(RELEASE)[name]), THERE)
    async with open_stage(PLAYS[name], tmp_path, None) as stage:

        async def connect():
            return await trio.open_tcp_stream(*stage.address)

        assert await play_requests(session, connect, known_texts(session, stage)) == []


@pytest.mark.parametrize("name", client_sessions.SESSIONS)
async def test_the_sdk_understands_a_later_node(name, tmp_path):
    session = of_a_later_release(Session.load(sessions_of(RELEASE)[name]), BACK)
    assert await play_sdk(session, client_sessions.SESSIONS[name], tmp_path) == []


@pytest.mark.parametrize("versions", [(1, 2), (2, 1), (7, 2, 1)])
async def test_a_node_chooses_version_1(versions, raw):
    async with raw() as connection:
        value = {"versions": list(versions), "name": "later", **LATER}
        await connection.send(encode_json(Opcode.HELLO, value))
        answer = await connection.receive()
        assert answer.opcode is Opcode.HELLO_OK
        assert HelloOk.decode(answer.body).version == 1


def without_optional_members(session):
    """The session of a node whose greeting has only what every version has."""
    frames = []
    for frame in session.frames:
        if frame.name == "HELLO_OK":
            value = {name: each for name, each in json.loads(frame.body).items() if name not in OPTIONAL}
            frame = frame._replace(body=json.dumps(value).encode())
        frames.append(frame)
    return session._replace(frames=frames)


@pytest.mark.parametrize("name", ["streams", "segments"])
async def test_the_sdk_goes_on_with_a_node_that_states_no_ability(name, tmp_path):
    session = without_optional_members(Session.load(sessions_of(RELEASE)[name]))
    wrong = await play_sdk(session, client_sessions.SESSIONS[name], tmp_path)
    # A write without a level is not known to it: the SDK names one.
    assert {each.partition(" ")[0] for each in wrong} <= {"connection"}
    assert all("[1]" in each and "WRITE" in each for each in wrong)


# Members of the answer to MEMBER that an earlier version may not tell.
UNTOLD = ("software", "withholds", "has_room", "unreadable", "held", "held_term", "asks")
# The greeting of every version tells who leads: a set cannot do without.
LEFT_OUT = {
    Opcode.HELLO_OK: ("window_bytes", "default_level", "takes_stream_credit", "takes_traces"),
    Opcode.RESULT: UNTOLD,
}


def speaks_as_earlier(node, monkeypatch):
    """A node leaves out what its version does not tell: in HELLO_OK, and in its answers to MEMBER."""
    services = node.node.services
    handlers = dict(services.handlers)

    def leaving_out(handler, module, opcode):
        def handle(connection, frame):
            with monkeypatch.context() as patch:
                patch.setattr(module, "encode_json", partial(encode_without, opcode))
                handler(connection, frame)

        return handle

    handlers[Opcode.HELLO] = leaving_out(handlers[Opcode.HELLO], messages, Opcode.HELLO_OK)
    handlers[Opcode.MEMBER] = leaving_out(handlers[Opcode.MEMBER], member_requests, Opcode.RESULT)
    monkeypatch.setattr(services, "handlers", handlers)


def encode_without(opcode, given, value, id=0):
    assert given is opcode
    return encode_json(given, {name: each for name, each in value.items() if name not in LEFT_OUT[opcode]}, id)


@pytest.mark.parametrize("earlier", [(0,), (1,), (0, 1, 2)], ids=["a leader", "a follower", "all"])
async def test_a_set_serves_though_members_state_no_ability(earlier, new_set, monkeypatch):
    nodes = new_set()
    await nodes.start()
    leader = await nodes.settled()
    ordered = [leader, *[node for node in nodes if node is not leader]]
    for number in earlier:
        speaks_as_earlier(ordered[number], monkeypatch)
    for node in nodes:  # they connect anew, and greet again
        for connection in list(node.node.connections):
            connection.transport.close()
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await put(feed, numbered(0, 50))
        await publish_one(feed)
        await nodes.level("orders")
        await leader.hand_over(ordered[1])
        await nodes.settled()
        await put(feed, numbered(50, 50))
        leader = await nodes.level("orders")
        assert leader is ordered[1]
        rows = numbered(0, 100) | {b"batch": b"1"}
        assert all(node.rows("orders") == rows for node in nodes)
