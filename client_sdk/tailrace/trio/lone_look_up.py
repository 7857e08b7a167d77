"""A look-up of one key whose task reads its answer by itself, by the short way (`tailrace.requests.lone_calls`)."""

from __future__ import annotations

from tailrace.model import Item, Level
from tailrace.requests.lone_calls import Begun, LoneLookUps
from tailrace.requests.request import Reply
from tailrace.trio.lending import LendingTransport


class LoneLookUp:
    """A look-up that waits for the next bytes of the connection. ``found`` has its item in a list, once it is known."""

    __slots__ = ("_asked", "_begun", "_deadline", "_lender", "_lone", "_reply", "found")

    def __init__(
        self,
        lone: LoneLookUps,
        asked: tuple[bytes, Level, bytes],
        begun: Begun,
        reply: type[Reply[list[Item | None]]],
        deadline: float,
        lender: LendingTransport,
    ) -> None:
        """``asked``: the feed's id, the level and the key. ``begun`` gets a request if the general way takes over."""
        self._lone = lone
        self._asked = asked
        self._begun = begun
        self._reply = reply
        self._deadline = deadline
        self._lender = lender
        self.found: list[Item | None] | None = None

    def take(self, data: bytes | memoryview) -> bool:
        """Takes the next bytes if they are its answer alone. Otherwise the general way takes over: it handles them."""
        self.found = self._lone.end(data, self._asked[2])
        if self.found is None:
            self.go_on()
        return self.found is not None

    def go_on(self) -> None:
        """Lets the general way take over, unless it has, or the answer is known."""
        if self.found is None and self._begun.request is None:
            self._lone.go_on(*self._asked, self._begun, self._reply(), self._deadline)

    def waits_no_longer(self) -> None:
        """Lets the general way take over, because the answer is late. Wakes the task."""
        self.go_on()
        self._lender.recall()
