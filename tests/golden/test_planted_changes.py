"""Changes of the protocol that older peers would not stand: the recorded sessions find each of them."""

from __future__ import annotations

import json
import struct

import pytest
import trio
from tests.golden import client_sessions
from tests.golden.archive import HERE, unpack
from tests.golden.fake_node import play_sdk
from tests.golden.record import PLAYS, open_stage
from tests.golden.recording import Session, sessions_of
from tests.golden.replay import misread, miswritten, play_requests
from tests.golden.test_golden import sinks_read

import tailrace
from tailrace.errors import VersionConflict
from tailrace.requests import replies
from tailrace.wire import failures, frames, messages, replica_messages, stage_messages, stream_messages
from tailrace.wire.opcodes import Opcode
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.feeds import feed_settings
from tailrace_server.serving import feed_requests
from tailrace_server.state import last_batches

RELEASE = "0.2"


def sessions():
    return [Session.load(path) for path in sessions_of(RELEASE).values()]


def renamed(monkeypatch, module, old, new):
    """The functions of ``module`` that read a member read it under another name."""
    for name in ("field", "seq_field", "hex_field"):
        read = getattr(module, name)

        def reading(value, member, *rest, _read=read):
            return _read(value, new if member == old else member, *rest)

        monkeypatch.setattr(module, name, reading)


def without(monkeypatch, kind, member, method="encode"):
    """The JSON that a class makes lacks a member."""
    made = getattr(kind, method)

    def encode(self, *rest):
        if method == "to_json":
            return {name: value for name, value in made(self, *rest).items() if name != member}
        frame = made(self, *rest)
        value = json.loads(frame[frames.FRAME_HEADER_BYTES :])
        del value[member]
        return frames.encode_frame(frame[4], json.dumps(value).encode(), frames.frame_id(frame))

    monkeypatch.setattr(kind, method, encode)


def opcode_changed(monkeypatch):
    monkeypatch.setitem(frames._OPCODES, int(Opcode.STAGED), Opcode.WRITTEN)


def opcode_dropped(monkeypatch):
    monkeypatch.delitem(frames._OPCODES, int(Opcode.TRACE))


def optional_member_renamed(monkeypatch):
    renamed(monkeypatch, messages, "takes_stream_credit", "takes_credit")


def member_renamed(monkeypatch):
    renamed(monkeypatch, stream_messages, "snapshot_first", "first")


def integers_swapped(monkeypatch):
    monkeypatch.setattr(replica_messages, "_ACK", struct.Struct("<I16s4xQ"))


def padding_dropped(monkeypatch):
    monkeypatch.setattr(messages, "_WRITTEN", struct.Struct("<I16sQQ"))


def byte_order_changed(monkeypatch):
    monkeypatch.setattr(stream_messages, "_SEQ", struct.Struct(">I4xQ"))


def code_renamed(monkeypatch):
    monkeypatch.delitem(failures._CODES, "version_conflict")
    monkeypatch.setitem(failures._CODES, "conflict", VersionConflict)


def sinks_swapped(monkeypatch):
    """The number of a sink's last batch and its seq change places."""
    whole = last_batches._read_last

    def read_last(value):
        return whole([value[2], value[1], value[0], *value[3:]])

    monkeypatch.setattr(last_batches, "_read_last", read_last)


READ = (
    opcode_changed,
    opcode_dropped,
    optional_member_renamed,
    member_renamed,
    integers_swapped,
    padding_dropped,
    byte_order_changed,
    code_renamed,
    sinks_swapped,
)


@pytest.mark.parametrize("plant", READ)
def test_a_change_of_what_is_read_is_found(monkeypatch, plant):
    plant(monkeypatch)
    assert [each for session in sessions() for each in misread(session)]


def member_dropped(monkeypatch):
    without(monkeypatch, stream_messages.StreamOk, "high_seq")


def member_with_a_default_dropped(monkeypatch):
    without(monkeypatch, stage_messages.Publish, "in_steps", "to_json")


def ability_not_stated(monkeypatch):
    without(monkeypatch, messages.HelloOk, "takes_traces")


@pytest.mark.parametrize("plant", [member_dropped, member_with_a_default_dropped, ability_not_stated])
def test_a_change_of_what_is_written_is_found(monkeypatch, plant):
    plant(monkeypatch)
    assert [each for session in sessions() for each in miswritten(session)]


def condition_moved(monkeypatch):
    monkeypatch.setattr(messages.WriteFlag, "IF_ABSENT", 16)


def setting_not_told(monkeypatch):
    made = feed_requests.info_to_json

    def info_to_json(info):
        value = made(info)
        del value["replication"]
        return value

    monkeypatch.setattr(feed_requests, "info_to_json", info_to_json)


def setting_not_read(monkeypatch):
    names = [name for name in feed_settings.CHANGEABLE if name != "history_bytes"]
    monkeypatch.setattr(feed_settings, "CHANGEABLE", tuple(names))


def digest_not_read(monkeypatch):
    """What earlier versions wrote is all that is read of a sink's last batch."""
    whole = last_batches._read_last
    monkeypatch.setattr(last_batches, "_read_last", lambda value: whole(value[:3]))


@pytest.mark.slow
@pytest.mark.parametrize("plant", [sinks_swapped, digest_not_read])
async def test_a_change_of_last_batches_in_a_directory_is_found(monkeypatch, plant, tmp_path):
    plant(monkeypatch)
    told = json.loads((HERE / RELEASE / "told.json").read_text())
    try:
        found = await sinks_read(unpack(RELEASE, "node", tmp_path))
    except* (BadDirectory, ValueError) as errors:
        found = errors
    assert found != told["node"]["sinks"]


def member_of_a_later_node_required(monkeypatch):
    """The SDK needs a member of answers that only later nodes have."""
    monkeypatch.setattr(replies.FeedInfo, "_fields", (*replies.FeedInfo._fields, "of_a_later_node"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (member_with_a_default_dropped, "stages"),
        (member_of_a_later_node_required, "writes"),
        (code_renamed, "writes"),
    ],
)
async def test_a_change_of_the_sdk_is_found(monkeypatch, plant, name, tmp_path):
    plant(monkeypatch)
    session = Session.load(sessions_of(RELEASE)[name])
    found = []
    try:
        found = await play_sdk(session, client_sessions.SESSIONS[name], tmp_path)
    except* (tailrace.TailraceError, AssertionError) as errors:
        found = errors.exceptions
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("plant", [condition_moved, setting_not_told, setting_not_read, ability_not_stated])
async def test_a_change_of_what_a_node_does_is_found(monkeypatch, plant, tmp_path):
    session = Session.load(sessions_of(RELEASE)["writes"])
    async with open_stage(PLAYS["writes"], tmp_path, None) as stage:
        plant(monkeypatch)

        async def connect():
            return await trio.open_tcp_stream(*stage.address)

        try:
            found = await play_requests(session, connect, {})
        except AssertionError as error:  # the node has closed the connection
            found = [str(error)]
    assert found
