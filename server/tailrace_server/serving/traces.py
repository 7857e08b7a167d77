"""TRACE: the context of the request that follows it, and the span of handling that request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tailrace.wire.frames import Frame, FrameDecoder
from tailrace.wire.messages import TRACING_MODULE, Trace, Write, Written, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.connection import Connection

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.model import VersionRange
    from tailrace.tracing import BlockSpan
    from tailrace_server.partition.partition import Partition


def _on_trace(connection: Connection, frame: Frame) -> None:
    connection.trace_next(frame.id, Trace.decode(frame.body))


def begin_traced(connection: Connection, id: int, write: Write, block: Block) -> Trace | None:
    """Returns the context of a write, if TRACE has told one; begins a span that ends with the answer."""
    trace = connection.take_trace(id)
    if trace is not None and TRACING_MODULE in sys.modules:
        from tailrace.tracing import begin_handling

        feed = connection.node.feeds.find(write.feed_id)
        name = write.feed_id.hex() if feed is None else feed.info.name
        span = begin_handling(trace, name, block.header.partition, block.header.rows)
        connection.answers.watch(id, partial(_answered, span))
    return trace


def _answered(span: BlockSpan, data: bytes | None) -> None:
    """Ends the span of a request by its answer; None: the connection has ended before."""
    if data is None:
        span.withdrawn()
        return
    (frame,) = FrameDecoder().receive_data(data)
    if frame.opcode is Opcode.WRITTEN:
        span.written(Written.decode(frame.body))
    else:
        span.failed(decode_error(frame.body))


def keep_trace(connection: Connection, partition: Partition, versions: VersionRange, trace: Trace) -> None:
    """Keeps the context of a write with its versions, for the streams."""
    kept = trace._replace(first_seq=versions.first_seq, last_seq=versions.last_seq)
    connection.node.traces.add(partition.feed_id, partition.id, versions.branch, kept)


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.TRACE: _on_trace,
}
