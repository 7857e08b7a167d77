"""The messages to a WebSocket client: docs/formats/websocket.md. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tailrace.consuming.events import Mutations, Rollback, SnapshotEnd
from tailrace.errors import BadPosition, DataGone, Forbidden, Retryable, TailraceError, UnknownFeed
from tailrace.model.json_rows import bytes_field, mutation_to_row
from tailrace_server.serving.board.pages import BadRequest

# A message is made, and parsed by a page, in one go: this keeps both to a few milliseconds. It is there four times
# (rows, text, bytes, frame) while it is sent. One row may be longer.
MESSAGE_ROWS_MAX = 1_000
MESSAGE_BYTES_MAX = 64 * 1024
# RFC 6455: a control frame's payload is at most 125 bytes, of which the code takes two.
CLOSE_REASON_BYTES_MAX = 123

GOING_AWAY = 1001
INTERNAL_ERROR = 1011

CLOSE_CODES: tuple[tuple[type[TailraceError], int], ...] = (
    (BadRequest, 4400),
    (Forbidden, 4403),
    (UnknownFeed, 4404),
    (BadPosition, 4409),
    (DataGone, 4410),
    (Retryable, 4503),
)


def encode_message(type_: str, **fields: Any) -> str:
    """Returns a message; no blanks, and text as it is."""
    return json.dumps({"type": type_, **fields}, ensure_ascii=False, separators=(",", ":"))


def type_of(message: str) -> str:
    """Returns the type of a message that `encode_message` has made."""
    begin = len('{"type":"')
    return message[begin : message.index('"', begin)]


def encode_mutations(event: Mutations) -> Iterator[str]:
    """Returns the mutations, in messages of bounded size."""
    rows: list[dict[str, Any]] = []
    bytes_count = 0
    for mutation in event.one_by_one():  # a block may have a megabyte, and its page may read slowly
        size = len(mutation.key) + len(mutation.value or b"")
        if rows and (len(rows) == MESSAGE_ROWS_MAX or bytes_count + size > MESSAGE_BYTES_MAX):
            yield encode_rows(event.partition, rows, event.refetched)
            rows, bytes_count = [], 0
        rows.append(mutation_to_row(mutation))
        bytes_count += size
    if rows:
        yield encode_rows(event.partition, rows, event.refetched)


def encode_rows(partition: int, rows: list[dict[str, Any]], refetched: bool = False) -> str:
    """Returns a message of rows, each as ``mutation_to_row`` makes it."""
    again = {"refetched": True} if refetched else {}
    return encode_message("mutations", partition=partition, **again, rows=rows)


def encode_snapshot_end(event: SnapshotEnd) -> str:
    """Returns a message that says that the partition is consistent as of ``seq``."""
    return encode_message("snapshot_end", partition=event.partition, seq=event.last_seq)


def encode_rollback(event: Rollback) -> str:
    """Tells that the mutations of the partition above ``seq`` no longer exist."""
    keys = None if event.keys is None else [bytes_field("key", key) for key in event.keys]
    return encode_message("rollback", partition=event.partition, seq=event.seq, keys=keys)


def encode_failure(error: TailraceError) -> str:
    """Returns a message that says why the connection is about to be closed."""
    return encode_message("error", error=type(error).__name__, message=str(error))


def close_of(error: TailraceError) -> tuple[int, str]:
    """Returns the code and the reason of the close that follows an error."""
    code = next((code for kind, code in CLOSE_CODES if isinstance(error, kind)), INTERNAL_ERROR)
    return code, close_reason(f"{type(error).__name__}: {error}")


def close_reason(text: str) -> str:
    """Cuts ``text`` to what fits into a close frame."""
    data = text.encode()
    if len(data) <= CLOSE_REASON_BYTES_MAX:
        return text
    return data[: CLOSE_REASON_BYTES_MAX - 3].decode(errors="ignore") + "..."
