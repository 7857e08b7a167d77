"""The dispatch table: the handler of each frame that a client or another node may send."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving import (
    consumer_requests,
    feed_requests,
    get_requests,
    member_requests,
    node_requests,
    progress_requests,
    replica_requests,
    segment_requests,
    stage_copy_requests,
    stage_requests,
    stream_requests,
    token_requests,
    traces,
    write_requests,
)
from tailrace_server.serving.connection import Connection

HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    **node_requests.HANDLERS,
    **feed_requests.HANDLERS,
    **token_requests.HANDLERS,
    **progress_requests.HANDLERS,
    **consumer_requests.HANDLERS,
    **traces.HANDLERS,
    **write_requests.HANDLERS,
    **get_requests.HANDLERS,
    **stream_requests.HANDLERS,
    **stage_requests.HANDLERS,
    **stage_copy_requests.HANDLERS,
    **segment_requests.HANDLERS,
    **replica_requests.HANDLERS,
    **member_requests.HANDLERS,
}
