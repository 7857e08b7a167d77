"""The steps of a transfer of segments, and how a story waits for one.

A step is met when its last mark comes, after the others in their order. A mark is a frame between the two nodes, or a
call of the follower's disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import SegmentFetch


class FrameMark(NamedTuple):
    """A frame from the leader, or to it, for which ``when(frame)`` holds."""

    opcode: Opcode
    from_leader: bool
    when: Callable[[Any], bool] = lambda frame: True


class CallMark(NamedTuple):
    """A call of the follower's disk: its name, and the end of the path, a regular expression."""

    call: str
    path: str


class Step(NamedTuple):
    """A step of a transfer.

    Attributes:
        name: For the story's name.
        marks: The last one is the step; the others come before it, in this order.
        has_new_rows: The leader gets rows meanwhile, while the segments are held up, and behind them.
        is_trimmed: The follower removes what it needs no more, again and again.
    """

    name: str
    marks: tuple[FrameMark | CallMark, ...]
    has_new_rows: bool = False
    is_trimmed: bool = False


NAMED_SEGMENT = CallMark("rename", r"\.seg(\.pushed)?\.new$")
INSTALLING = CallMark("rename", r"/MANIFEST\.new$")
INSTALLED = (NAMED_SEGMENT, INSTALLING, CallMark("sync_directory", r"/feeds/[^/]+/\d+$"))
RELEASED = FrameMark(Opcode.SEGMENT_RELEASE, from_leader=False)
AHEAD = r"/AHEAD$"


def _is_checkpoint(frame):
    return b'"kept_s"' in frame.body


def _is_later_fetch(frame):
    return SegmentFetch.decode(frame.body).offset > 0


def _is_later_part(frame):
    return int.from_bytes(frame.body[8:16], "little") > 0


OF_A_PULL = (
    Step("asking", (FrameMark(Opcode.SEGMENT_CHECKPOINT, from_leader=False),)),
    Step("pinning", (FrameMark(Opcode.RESULT, from_leader=True, when=_is_checkpoint),)),
    Step("fetching", (FrameMark(Opcode.SEGMENT_FETCH, from_leader=False, when=_is_later_fetch),)),
    Step("verifying", (CallMark("sync", r"\.seg\.new$"),)),
    Step("naming", (NAMED_SEGMENT,)),
    Step("installing", (NAMED_SEGMENT, INSTALLING)),
    Step("installed", INSTALLED),
    Step("removing", (*INSTALLED, CallMark("remove", r"\.seg$")), is_trimmed=True),
    Step("keeping_rows_ahead", (CallMark("sync", AHEAD),), has_new_rows=True),
    Step("applying_rows_ahead", (CallMark("sync", AHEAD), INSTALLING, CallMark("remove", AHEAD)), has_new_rows=True),
    Step("streaming", (RELEASED, FrameMark(Opcode.BLOCK, from_leader=True)), has_new_rows=True),
)
OF_A_PUSH = (
    Step("offering", (FrameMark(Opcode.SEGMENT_OFFER, from_leader=True),)),
    Step("accepting", (FrameMark(Opcode.SEGMENT_ACCEPT, from_leader=False),)),
    Step("sending", (FrameMark(Opcode.SEGMENT_TRANSIT, from_leader=True, when=_is_later_part),)),
    Step("finishing", (CallMark("sync", r"\.seg\.pushed\.new$"),)),
    Step("naming", (NAMED_SEGMENT,)),
    Step("installing", (NAMED_SEGMENT, INSTALLING)),
    Step("installed", INSTALLED),
    Step("acknowledging", (*INSTALLED, FrameMark(Opcode.SEGMENT_ACK, from_leader=False))),
)


class Watch:
    """Waits for a step of a transfer between two nodes, and does something in it, once."""

    def __init__(self, world, step, leader, follower, act):
        """``act()`` is called at the last mark: before the frame leaves, or before the call has an effect."""
        self._world = world
        self._step = step
        self._leader = leader
        self._follower = follower
        self._act = act
        self._left = list(step.marks)
        self._actions = []
        self.met = trio.Event()

    def __enter__(self):
        for mark in self._step.marks:
            if isinstance(mark, FrameMark):
                action = self._on_frame(mark)
                self._actions.append((mark.opcode, action))
                self._world.transfers.arm(mark.opcode, action)
        self._world.machine(self._follower).watch_calls(self._on_call)
        return self

    def __exit__(self, *error):
        for opcode, action in self._actions:
            self._world.transfers.disarm(opcode, action)
        self._world.machine(self._follower).watch_calls(None)

    def _on_frame(self, mark):
        way = (self._leader, self._follower) if mark.from_leader else (self._follower, self._leader)

        def action(frame):
            if self._left and self._left[0] is mark and (frame.sender, frame.receiver) == way and mark.when(frame):
                self._passed()
            return frame.data, False

        return action

    def _on_call(self, name, path):
        mark = self._left[0] if self._left else None
        if isinstance(mark, CallMark) and mark.call == name and re.search(mark.path, path):
            self._passed()

    def _passed(self):
        self._left.pop(0)
        if not self._left:
            self.met.set()
            self._act()
