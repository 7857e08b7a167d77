"""Notes which events have met that are hard together: most bugs of changefeeds sit where two of them cross.

    compaction, purge, crash, quiet partition   x resume    after this client's last request of a partition's stream
                                                            its segments were folded, its deletions purged, the node
                                                            had died, or nothing was written to it
    compaction, purge, crash, quiet partition,  x barrier   between the question for a barrier and its return; quiet: a
    resume, rollback                                        partition without a row since this client's last one
    crash, rollback                             x rollback  between a rollback and the end of a snapshot after it
    filter                                      x resume,   the client does not ask for everything
                                                barrier

Resumes are seen on the wire.
"""

from __future__ import annotations

from collections import defaultdict

from tailrace.wire.filters import EVERYTHING
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamRequest

ALL = (
    *(f"{what} x resume" for what in ("compaction", "purge", "crash", "quiet partition", "filter")),
    *(f"{what} x barrier" for what in ("compaction", "purge", "crash", "quiet partition", "resume", "rollback")),
    "filter x barrier",
    *(f"{what} x rollback" for what in ("crash", "rollback")),
)
# The seeds of the quick test need not have them.
RARE = ("rollback x rollback",)
# Before a partition's first row, or its first compaction.
NEVER = -1.0


class Crosses:
    """``note`` is called with the name of each cross that happens, ``now`` gives the time."""

    def __init__(self, now, note):
        self._now = now
        self._note = note
        self._decoders = {}
        self._asked = {}  # (client, partition): when its stream was last asked for
        self._resumed = {}  # client: when it last asked for a stream again
        self._filtered = set()  # clients that do not ask for everything
        self._barriers = {}  # client: when its last barrier came back
        self._rolling_back = {}  # (client, partition): when it went back, if no snapshot has ended since
        self._rolled_back = {}  # client: when it last went back
        self._appended = defaultdict(lambda: NEVER)
        self._compacted = defaultdict(lambda: NEVER)
        self._purged = defaultdict(lambda: NEVER)
        self._died = NEVER

    # Events

    def died(self):
        self._died = self._now()

    def appended(self, partition):
        self._appended[partition] = self._now()

    def compacted(self, partition, *, purged):
        self._compacted[partition] = self._now()
        if purged:
            self._purged[partition] = self._now()

    def rolled_back(self, client, partition):
        begun = self._rolling_back.get((client, partition))
        if begun is not None:
            self._note("rollback x rollback")
        self._rolling_back[client, partition] = self._rolled_back[client] = self._now()

    def at_snapshot_end(self, client, partition):
        """Notes that a client is at the end of a snapshot of a partition."""
        begun = self._rolling_back.pop((client, partition), None)
        if begun is not None and self._died >= begun:
            self._note("crash x rollback")

    def heard(self, connection, client, data, feed_id):
        """Reads the requests of a client. Those of the feed ``feed_id`` count."""
        decoder = self._decoders.setdefault(connection, FrameDecoder())
        for frame in decoder.receive_data(data):
            if frame.opcode is Opcode.STREAM_REQUEST:
                request = StreamRequest.decode(frame.body)
                if request.feed_id == feed_id:
                    self._requested(client, request)

    # Crosses

    def _requested(self, client, request):
        partition, now = request.partition, self._now()
        if request.filter != EVERYTHING:
            self._filtered.add(client)
        last = self._asked.get((client, partition))
        self._asked[client, partition] = now
        if last is None or not request.seq:
            return
        self._resumed[client] = now
        times = {
            "compaction": self._compacted[partition],
            "purge": self._purged[partition],
            "crash": self._died,
        }
        for what, time in times.items():
            if time >= last:
                self._note(f"{what} x resume")
        if NEVER < self._appended[partition] < last:
            self._note("quiet partition x resume")
        if client in self._filtered:
            self._note("filter x resume")

    def barrier_begins(self):
        """Returns the moment of a request, for `barrier_ends`."""
        return self._now()

    def barrier_ends(self, client, begun):
        """Notes the crosses of a barrier that was asked for at ``begun`` and has returned."""
        times = {
            "compaction": max(self._compacted.values(), default=NEVER),
            "purge": max(self._purged.values(), default=NEVER),
            "crash": self._died,
            "resume": self._resumed.get(client, NEVER),
            "rollback": self._rolled_back.get(client, NEVER),
        }
        for what, time in times.items():
            if time >= begun:
                self._note(f"{what} x barrier")
        last = self._barriers.get(client, begun)
        if any(NEVER < time < last for time in self._appended.values()):
            self._note("quiet partition x barrier")
        if client in self._filtered:
            self._note("filter x barrier")
        self._barriers[client] = self._now()
