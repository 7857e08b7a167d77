"""The frames about the node itself: HELLO, NOOP, STATUS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tailrace import _version
from tailrace.errors import ProtocolError, TailraceError
from tailrace.trio.tls import peer_identity
from tailrace.wire.frames import Frame
from tailrace.wire.messages import PROTOCOL_VERSION, Hello, HelloOk
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.feeds_answer import answer_in_turns, answer_of_feeds, few
from tailrace_server.serving.status import status_body, status_head, tell_feeds

# A HELLO may name thousands.
_VERSIONS_SHOWN = 10


def _on_hello(connection: Connection, frame: Frame) -> None:
    if connection.greeted:
        raise ProtocolError("a second HELLO")
    hello = Hello.decode(frame.body)
    if PROTOCOL_VERSION not in hello.versions:
        raise ProtocolError(
            f"the client speaks versions {list(hello.versions[:_VERSIONS_SHOWN])} of the protocol, this node "
            f"{PROTOCOL_VERSION} (tailrace {_version.__version__}): use a release of the client that speaks it"
        )
    if hello.of_node:
        connection.require_node("HELLO of a node")
    node = connection.node
    peer = connection.transport.peer
    try:
        access = node.authority.identify(hello.token, peer, peer_identity(connection.transport))
    except TailraceError as error:
        connection.refuse(error, node.authority.pause_s(peer, hello.token))
        return
    limits, identity = node.config.limits, node.identity
    is_of_node = hello.of_node and access.is_of_node
    if not is_of_node and not node.connections.admits(connection):
        return
    connection.greet(hello, access)
    if hello.session:
        node.connections.begin_session(connection)
    leadership = connection.unnamed
    levels = ("memory", "disk", "quorum") if leadership.in_set else ("memory", "disk")
    connection.answers.add(
        HelloOk(
            PROTOCOL_VERSION,
            identity.node_id.hex(),
            identity.cluster_id.hex(),
            f"tailrace/{_version.__version__}",
            limits.frame_body_bytes_max,
            limits.noop_interval_s,
            levels,
            connection.rounds.window.nbytes,
            leadership.role.value,
            leadership.term,
            leadership.leader_address,
            node.config.cluster,
            leadership.safest_level.name.lower(),
            takes_stream_credit=True,
            takes_traces=True,
            takes_progress=True,
            takes_consumers=True,
            takes_ttls=True,
        ).encode()
    )


def _on_noop(connection: Connection, frame: Frame) -> None:
    """Nothing: it was heard."""


def _on_status(connection: Connection, frame: Frame) -> None:
    node, access = connection.node, connection.access
    if few(node.feeds):
        answer_of_feeds(connection, frame.id, status_head(node, access), tell_feeds(node))
    else:
        answer_in_turns(connection, frame.id, partial(status_body, node, access))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.HELLO: _on_hello,
    Opcode.NOOP: _on_noop,
    Opcode.STATUS: _on_status,
}
