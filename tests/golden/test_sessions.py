"""This program understands the peers of every release since 0.2, as their sessions were recorded."""

from __future__ import annotations

import pytest
import trio
from tests.golden import client_sessions
from tests.golden.archive import releases
from tests.golden.fake_node import play_sdk
from tests.golden.node_sessions import LIMITS, STORAGE
from tests.golden.record import PLAYS, Play, known_texts, open_stage
from tests.golden.recording import BACK, THERE, Session, sessions_of
from tests.golden.replay import misread, miswritten, play_requests

from tailrace.wire.failures import _CODES
from tailrace.wire.opcodes import Opcode

# What no recording of 0.2 has, and why.
UNRECORDED_CODES = {
    "writes_lost": "the SDK alone raises it",
    "bad_position": "the SDK alone raises it",
    "data_gone": "the SDK alone raises it, for a STREAM_END",
    "stream_ended": "the SDK alone raises it",
}
PLAYED = {**PLAYS, "replica": Play(None, {"storage": STORAGE, "limits": LIMITS})}
RECORDED = [(release, name) for release in releases() for name in sessions_of(release)]


@pytest.fixture
def session(release, name):
    return Session.load(sessions_of(release)[name])


def every_frame():
    for release, name in RECORDED:
        yield from Session.load(sessions_of(release)[name]).frames


def test_every_opcode_is_recorded():
    """A new opcode needs a recording: see tests/README.md."""
    assert {frame.name for frame in every_frame()} == {opcode.name for opcode in Opcode}


def test_every_error_is_recorded_that_a_node_can_be_made_to_answer():
    found = {frame.meaning["code"] for frame in every_frame() if frame.name == "ERROR"}
    assert found == _CODES.keys() - UNRECORDED_CODES.keys()


def test_both_sides_of_a_conversation_are_recorded():
    assert {frame.way for frame in every_frame()} == {THERE, BACK}


@pytest.mark.parametrize(("release", "name"), RECORDED)
def test_every_frame_is_read_as_its_release_read_it(session):
    assert list(misread(session)) == []


@pytest.mark.parametrize(("release", "name"), RECORDED)
def test_every_frame_that_is_written_again_means_the_same(session):
    assert list(miswritten(session)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("release", "name"), [(release, name) for release, name in RECORDED if name in PLAYED])
async def test_a_node_answers_a_client_of_the_release_as_then(session, name, tmp_path):
    async with open_stage(PLAYED[name], tmp_path, None) as stage:

        async def connect():
            return await trio.open_tcp_stream(*stage.address)

        assert await play_requests(session, connect, known_texts(session, stage)) == []


SDK_PLAYED = [(release, name) for release, name in RECORDED if name in client_sessions.SESSIONS]


@pytest.mark.slow
@pytest.mark.parametrize(("release", "name"), SDK_PLAYED)
async def test_the_sdk_understands_a_node_of_the_release_as_then(session, name, tmp_path):
    assert await play_sdk(session, client_sessions.SESSIONS[name], tmp_path) == []
