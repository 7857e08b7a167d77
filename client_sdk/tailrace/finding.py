"""Which node to ask next, where any of several may be the one to ask. Pure: what nodes said in, the next try out.

    a round:  a hint ── the addresses of the URL, those that did not answer last of all ── where it was found before
              each address once at most, and nothing waits between two of them
    then a pause, longer after each round, and the next round

A hint is the address that a node gives for its leader. It may be old, and lead in circles: so it is followed once a
round, and only so many are. It may name a node that the URL does not.

1. A round ends: it has so many tries at most, each bounded in time by the shell.
2. Once there is one leader, and the nodes of the URL that live know it or can be reached in turn, the next whole round
   finds it.
3. A leader whose term is below one that a node of its cluster has told is none: it does not know of its successor yet.
4. The pauses begin anew only after a connection that was of use for a while, so a node that says that it leads and then
   refuses everything is not asked in a hot loop.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING

from tailrace.address import Address, parse_address
from tailrace.backoff import backoff_seconds
from tailrace.errors import NotLeader, Unreachable

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk

STATES = ("leader", "follower", "any")
# Hints that are followed in one round: a set is of a few nodes, and a chain of hints that is longer is a circle.
HINTS_MAX = 8
# One try, where there are others to be made: a machine that is gone takes no more than that of each round.
TRY_SECONDS_MAX = 3.0
# A connection that lasted so long was of use: what comes after it is a new search.
STEADY_SECONDS = 2.0
# Clusters whose terms are remembered; the nodes of a URL are of one.
_CLUSTERS_MAX = 16


class Finder:
    """See the module. ``clock`` gives monotonic seconds.

    ``state``: what a node has to be: "leader", "follower", or "any".
    """

    def __init__(
        self,
        addresses: tuple[Address, ...],
        state: str,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random,
    ) -> None:
        self.state = state
        self._addresses = addresses
        self._clock = clock
        self._jitter = jitter
        self._hint: Address | None = None
        self._hints_left = HINTS_MAX
        self._found: Address | None = None
        self._visited: set[Address] = set()
        self._unanswering: set[Address] = set()
        self._rounds = 0
        self._opened_at: float | None = None
        self._terms: dict[str, int] = {}  # by cluster id: the highest that was told
        self.address = addresses[0]  # of the last try

    def another(self) -> Finder:
        """One for another connection of the same client: it begins where this one has found the node."""
        other = Finder(self._addresses, self.state, self._clock, self._jitter)
        other._hint = other._found = self._found
        other._terms = self._terms
        return other

    @property
    def has_others(self) -> bool:
        """There is more than one node to ask."""
        return len(self._addresses) > 1

    def try_seconds(self, connect_timeout_s: float) -> float:
        """How long the present try may take, where ``connect_timeout_s`` is what all of them may."""
        if self._addresses == (self.address,):
            return connect_timeout_s  # there is no other place to look
        return min(connect_timeout_s / len(self._addresses), TRY_SECONDS_MAX)

    def next_try(self) -> tuple[Address, float]:
        """Where to try next, and after how many seconds. Tell `failed` how it ended."""
        pause_s = 0.0
        address = self._pick()
        if address is None:
            self._rounds += 1
            pause_s = backoff_seconds(self._rounds, self._jitter)
            self._visited.clear()
            self._hints_left = HINTS_MAX
            address = self._pick()
            assert address is not None, "a new round has every address before it"
        self._visited.add(address)
        self.address = address
        return address, pause_s

    def check(self, peer: HelloOk) -> None:
        """A node has said hello: raises NotLeader, or Unreachable, where it is not the one to ask."""
        self._unanswering.discard(self.address)
        highest = self._terms.get(peer.cluster_id, 0)
        if peer.term > highest:
            if len(self._terms) >= _CLUSTERS_MAX:
                self._terms.clear()
            self._terms[peer.cluster_id] = peer.term
        if self.state == "leader":
            if peer.role != "leader":
                hint = peer.leader if peer.term >= highest else None
                raise NotLeader(f"the node at {self.address} does not lead", leader=hint or None)
            if peer.term < highest:
                raise NotLeader(f"the node at {self.address} leads in term {peer.term}, and there was a term {highest}")
        elif self.state == "follower" and peer.role != "follower":
            raise Unreachable(f"the node at {self.address} leads, and a follower was asked for")
        self._opened_at = self._clock()
        self._found = self.address

    def failed(self, error: Exception) -> None:
        """The try has ended, or the connection that came of it."""
        opened_at, self._opened_at = self._opened_at, None
        if opened_at is not None and self._clock() - opened_at >= STEADY_SECONDS:
            self._rounds = 0
            self._visited = {self.address}
            self._hints_left = HINTS_MAX
        if not isinstance(error, NotLeader):
            if self.address in self._addresses:
                self._unanswering.add(self.address)
        elif error.leader and self.state == "leader" and self._hints_left:
            self._hints_left -= 1
            self._hint = _address(error.leader)

    def _pick(self) -> Address | None:
        hint, self._hint = self._hint, None
        if hint is not None and hint not in self._visited:
            return hint
        left = [address for address in self._addresses if address not in self._visited]
        if left:
            return min(left, key=self._unanswering.__contains__)
        return self._found if self._found not in self._visited else None


def check_state(state: str) -> None:
    """ValueError where ``state`` is none that a client may ask for."""
    if state not in STATES:
        raise ValueError(f"state is {state!r}, none of {', '.join(map(repr, STATES))}")


def _address(text: str) -> Address | None:
    """What a node gave as an address; None where it is none."""
    try:
        return parse_address(text)
    except ValueError:
        return None
