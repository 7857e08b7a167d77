"""docs/formats/websocket.md shows the messages that there are, with the fields that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailrace import errors
from tailrace.block import encode_block
from tailrace.block.header import EXPIRED
from tailrace.consuming.events import Mutations, Rollback, SnapshotEnd
from tailrace.model.failover import FailoverLog
from tailrace.model.json_rows import mutation_to_row
from tailrace.model.position import Position
from tailrace_server.serving.tailing import listener as door
from tailrace_server.serving.tailing import messages, request, session

PAGE = (Path(__file__).parents[4] / "docs" / "formats" / "websocket.md").read_text()
EXAMPLES = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
BY_TYPE = {example["type"]: example for example in EXAMPLES if "type" in example}


def rows_of(heading):
    """The cells of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]
    return [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]


def test_the_types_of_messages():
    assert set(BY_TYPE) == {"open", "mutations", "snapshot_end", "positions", "rollback", "error"}


def test_the_first_message_of_a_client():
    [example, token] = [example for example in EXAMPLES if "type" not in example]
    assert request.parse_token_message(json.dumps(token)) == "tr1_..."
    with pytest.raises(errors.BadPosition):  # it is cut short, and a first message all the same
        request.parse_first_message(json.dumps(example))


def test_mutations():
    example = BY_TYPE["mutations"]
    block = encode_block([b"a", b"a", b"\xff"], [b"1", None, b""], partition=2).stamped(1, 5)
    [message] = messages.encode_mutations(Mutations(block))
    shown = json.loads(message)
    for row, stamp in zip(shown["rows"], (row["timestamp"] for row in example["rows"]), strict=True):
        row["timestamp"] = stamp
    assert shown == example
    assert f"At most {messages.MESSAGE_ROWS_MAX:,} rows" in PAGE
    assert f"{messages.MESSAGE_BYTES_MAX // 1024} KiB of keys and values" in PAGE
    assert f"costs the node up to {session.CLIENT_BYTES_MAX >> 20} MiB" in PAGE


def test_the_other_messages():
    end = SnapshotEnd(2, 1, 3, Position.at(FailoverLog(), 0))
    assert json.loads(messages.encode_snapshot_end(end)) == BY_TYPE["snapshot_end"]
    assert json.loads(messages.encode_rollback(Rollback(2, 1, (b"a", b"\xff")))) == BY_TYPE["rollback"]
    error = errors.UnknownFeed(BY_TYPE["error"]["message"])
    assert json.loads(messages.encode_failure(error)) == BY_TYPE["error"]


def test_the_fields_of_a_row():
    block = encode_block([b"\xff", b"\xff"], [b"\xff", None], partition=2, ttls=[0, EXPIRED]).stamped(1, 5)
    [written, expired] = Mutations(block)
    assert {row[0] for row in rows_of("Rows")} == {*mutation_to_row(written), *mutation_to_row(expired)}


def test_the_codes_of_a_close():
    for code, name, _ in rows_of("The end"):
        kind = getattr(errors, name, getattr(request, name, None))
        if kind is not None:
            assert messages.close_of(kind("x"))[0] == int(code)
    codes = {int(code) for code, _, _ in rows_of("The end")}
    assert codes == {code for _, code in messages.CLOSE_CODES} | {1001, 1008, 1009, 1011}


def test_the_parameters_and_the_bounds():
    assert tuple(row[0] for row in rows_of("Request")) == request.PARAMETERS
    for text in (
        f"`{request.SUBPROTOCOL}`",
        f"within {session.FIRST_MESSAGE_SECONDS_MAX:g} seconds",
        f"It may have {door.MESSAGE_BYTES_MAX >> 20} MiB",
        f"takes nothing for {session.SEND_SECONDS_MAX:g} seconds",
        f"answers no ping for {session.PONG_SECONDS_MAX:g}",
        f"up to {session.CLIENT_BYTES_MAX >> 20} MiB",
        f"At most {door.CONNECTIONS_MAX} clients",
    ):
        assert text in PAGE
