"""The states of an open stream, and the table of the events that lead from one state to the next. Pure.

           NEWS           SNAPSHOT_STARTED           CHUNK_MISSING           READ_STARTED
    IDLE ───────> READY ───────────────────> SENDING ──────────────> QUEUED ─────────────> LOADING
     ^ ^            │                         │   ^                                           │
     │ └────────────┘                         │   └────────────────── CHUNK_READ ─────────────┘
     │   SNAPSHOT_SENT                        │
     └────────────── SNAPSHOT_SENT ───────────┘          CLOSED leads from each state to ENDED.

A stream has its turn in READY and SENDING. It is inside a snapshot in SENDING, QUEUED and LOADING; then only its
consumer, the partition's history or an error may end it, and everything else waits for the snapshot's end.
"""

from __future__ import annotations

import enum


class StreamState(enum.Enum):
    """What an open stream can do next."""

    #            name      in_snapshot  has_turn
    IDLE = "idle", False, False
    """Its consumer has everything that the stream's level shows."""
    READY = "ready", False, True
    """There are mutations for its consumer: the next turn takes a snapshot."""
    SENDING = "sending", True, True
    """The next block of its snapshot is in memory."""
    QUEUED = "queued", True, False
    """The next block is in a segment, and the connection has no room for another chunk yet."""
    LOADING = "loading", True, False
    """A thread reads the chunk of the segment that has the next block."""
    ENDED = "ended", False, False
    """Nothing more is sent. A thread may still read for the stream; what it reads is dropped."""

    def __init__(self, label: str, in_snapshot: bool, has_turn: bool) -> None:
        self.label = label
        self.in_snapshot = in_snapshot
        self.has_turn = has_turn

    __hash__ = object.__hash__  # Enum's is a call in Python, and a round looks up two events for each stream


class StreamEvent(enum.Enum):
    """What happens to an open stream."""

    NEWS = "news"
    """The partition shows mutations that the consumer does not have."""
    SNAPSHOT_STARTED = "snapshot started"
    SNAPSHOT_SENT = "snapshot sent"
    """Its last frame was queued. A snapshot of one block may start and end in one step."""
    CHUNK_MISSING = "chunk missing"
    """The next block has to be read from a segment."""
    READ_STARTED = "read started"
    CHUNK_READ = "chunk read"
    CLOSED = "closed"
    """The stream reached its end, or was ended for another reason."""

    __hash__ = object.__hash__


_TABLE: dict[StreamState, dict[StreamEvent, StreamState]] = {
    StreamState.IDLE: {
        StreamEvent.NEWS: StreamState.READY,
        StreamEvent.CLOSED: StreamState.ENDED,
    },
    StreamState.READY: {
        StreamEvent.SNAPSHOT_STARTED: StreamState.SENDING,
        StreamEvent.SNAPSHOT_SENT: StreamState.IDLE,
        StreamEvent.CLOSED: StreamState.ENDED,
    },
    StreamState.SENDING: {
        StreamEvent.SNAPSHOT_SENT: StreamState.IDLE,
        StreamEvent.CHUNK_MISSING: StreamState.QUEUED,
        StreamEvent.CLOSED: StreamState.ENDED,
    },
    StreamState.QUEUED: {
        StreamEvent.READ_STARTED: StreamState.LOADING,
        StreamEvent.CLOSED: StreamState.ENDED,
    },
    StreamState.LOADING: {
        StreamEvent.CHUNK_READ: StreamState.SENDING,
        StreamEvent.CLOSED: StreamState.ENDED,
    },
    StreamState.ENDED: {},
}


def transition(state: StreamState, event: StreamEvent) -> StreamState:
    """Returns the state that ``event`` leads to from ``state``. RuntimeError if the table has no such event."""
    try:
        return _TABLE[state][event]
    except KeyError:
        raise RuntimeError(f"stream state {state.name}: event {event.name} is not possible") from None
