"""Events as messages: their size is bounded, and nothing is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace.consuming.events import Mutations, Rollback
from tailrace.errors import BadPosition, DataGone, Forbidden, Overloaded, StreamEnded, TailraceError, UnknownFeed
from tailrace.model import EndReason
from tailrace.model.json_rows import field_bytes
from tailrace_server.serving.tailing.messages import (
    CLOSE_REASON_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ROWS_MAX,
    close_of,
    close_reason,
    encode_failure,
    encode_mutations,
    encode_rollback,
)
from tailrace_server.serving.tailing.request import BadRequest


def mutations(rows, refetched=False):
    block = encode_block([key for key, _ in rows], [value for _, value in rows], partition=5)
    return Mutations(block.stamped(10, 1_000), refetched=refetched)


def decoded(event):
    return [json.loads(message) for message in encode_mutations(event)]


def test_a_message_of_mutations():
    [message] = encode_mutations(mutations([(b"a", b"1"), (b"\xff", None)]))
    assert json.loads(message) == {
        "type": "mutations",
        "partition": 5,
        "rows": [
            {"key": "a", "value": "1", "seq": 10, "deleted": False, "timestamp": 1_000},
            {"key": "/w==", "key_encoding": "base64", "value": None, "seq": 11, "deleted": True, "timestamp": 1_000},
        ],
    }
    assert " " not in message


def test_mutations_that_come_again_say_so():
    [message] = decoded(mutations([(b"a", b"1")], refetched=True))
    assert message["refetched"] is True


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.none() | st.binary(max_size=8)), min_size=1))
def test_the_rows_and_no_others(rows):
    found = [
        (field_bytes(row, "key"), field_bytes(row, "value"))
        for message in decoded(mutations(rows))
        for row in message["rows"]
    ]
    assert found == rows


def test_rows_in_a_message_are_bounded():
    found = decoded(mutations([(b"k%d" % number, b"") for number in range(2 * MESSAGE_ROWS_MAX + 1)]))
    assert [len(message["rows"]) for message in found] == [MESSAGE_ROWS_MAX, MESSAGE_ROWS_MAX, 1]


def test_bytes_in_a_message_are_bounded():
    value = b"v" * (MESSAGE_BYTES_MAX // 2)
    found = decoded(mutations([(b"a", value), (b"b", b""), (b"c", value), (b"d", 4 * value), (b"e", b"")]))
    assert [[row["key"] for row in message["rows"]] for message in found] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_rollbacks():
    known = json.loads(encode_rollback(Rollback(2, 7, (b"a", b"\xff"))))
    assert known == {
        "type": "rollback",
        "partition": 2,
        "seq": 7,
        "keys": [{"key": "a"}, {"key": "/w==", "key_encoding": "base64"}],
    }
    assert json.loads(encode_rollback(Rollback(2, 0, None)))["keys"] is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequest("x"), 4400),
        (Forbidden("x"), 4403),
        (UnknownFeed("x"), 4404),
        (BadPosition("x"), 4409),
        (DataGone("x"), 4410),
        (Overloaded("x"), 4503),
        (StreamEnded("x", reason=EndReason.ERROR), 1011),
        (TailraceError("x"), 1011),
    ],
)
def test_codes_of_a_close(error, code):
    assert close_of(error) == (code, f"{type(error).__name__}: x")
    assert json.loads(encode_failure(error)) == {"type": "error", "error": type(error).__name__, "message": "x"}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_close_has_room_for_its_reason(text):
    reason = close_reason(text)
    assert len(reason.encode()) <= CLOSE_REASON_BYTES_MAX
    assert reason == text or (reason.endswith("...") and text.startswith(reason[:-3]))
