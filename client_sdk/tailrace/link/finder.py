"""Chooses the node to ask next: takes the answers of nodes, returns the address of the next try. Pure.

    a round:  a hint ── the addresses of the URL, those that did not answer last ── the address that worked before
              each address at most once, without a pause between two of them
    then a pause, longer after each round, and the next round

A hint is the address that a node gives for its leader. It may be old, and hints may lead in circles. So each hint is
followed once a round, and at most ``HINTS_MAX`` of them. It may name a node that the URL does not name.

1. A round ends: the number of its tries is bounded, and the shell bounds the time of each try.
2. If there is one leader, and the living nodes of the URL know it or can be reached in turn, the next whole round finds
   it.
3. A leader whose term is below that of another leader of its cluster is ignored: it has not heard of its successor yet.
   The term of a follower is ignored, too: it may be a promise to a candidate that lost.
4. The pauses begin anew after a useful connection: one that lasted for ``STEADY_SECONDS``, or on which the session made
   progress. They grow after a connection that broke sooner, even if the node had said hello. So a node that hangs up at
   once, or that claims to lead and then refuses everything, is not asked in a hot loop.

A leader that is cut off from the other nodes may continue to serve clients in its old term. So a client with several
addresses looks at the other nodes while it is served, by a HELLO on another connection: at each node once every
``LOOK_SECONDS``, and at one node every ``LOOK_WAITING_SECONDS`` while a request waits for ``LONG_WAIT_SECONDS``. It
leaves its leader only for a node that claims to lead in a higher term. A higher term alone may be a promise to a
candidate that lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING

from tailrace.errors import NotLeader, TailraceError, Unreachable
from tailrace.link.address import Address, parse_address
from tailrace.link.backoff import RECONNECT_GROWTH, backoff_seconds
from tailrace.link.sparing import Sparing

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk

STATES = ("leader", "follower", "any")
# The hints that are followed in one round: a set has a few nodes, and a longer chain of hints is a circle.
HINTS_MAX = 8
# The most seconds of one try if there are other addresses: a dead machine takes no more than this of each round.
TRY_SECONDS_MAX = 3.0
# Rounds after which pauses grow no more while nodes say hello: about half a second. A network that breaks within each
# large block lets no answer through, and only many tries bring the block there.
GREETED_ROUNDS_MAX = 7
# A connection that lasted for this time was useful, and a new search begins after it.
STEADY_SECONDS = 2.0
# The seconds between two looks at the same node: an old leader loses the writes that it takes meanwhile at level disk.
LOOK_SECONDS = 30.0
# The same while a request has waited for long: a leader without a majority gives no answer at level quorum.
LOOK_WAITING_SECONDS = 1.0
# The seconds that count as long: a leader of a set that is busy answers sooner.
LONG_WAIT_SECONDS = 0.5
# The seconds between two checks that a look is due, and of one look: a living node says hello in milliseconds.
LOOK_TICK_SECONDS = 0.25
LOOK_TIMEOUT_SECONDS = 0.3
# The seconds between two checks of a client without a request: many clients of one program may have nothing to do.
LOOK_IDLE_SECONDS = 1.0
# The clusters whose terms are remembered; the nodes of a URL belong to one.
_CLUSTERS_MAX = 16

log = logging.getLogger("tailrace.client")


class _Known:
    """The knowledge of the nodes that the connections of one client share."""

    def __init__(self) -> None:
        self.cluster_id = ""  # of the first leader that was found; requests go to no other one
        self.terms: dict[str, int] = {}  # by cluster id: the highest term of a leader
        self.leader: tuple[str, int, Address] | None = None  # the latest leader that a look has found: cluster id, term
        self.looked: dict[Address, float] = {}  # when each address of the URL was looked at
        self.looked_at = float("-inf")
        self.to_look: Address | None = None  # the leader that a looked-at node has named
        self.hinted: Address | None = None  # the node that was looked at last, if another one had named it

    def learn(self, leader: HelloOk) -> None:
        """Remembers the term of a leader."""
        if leader.term > self.highest_term(leader.cluster_id):
            if len(self.terms) >= _CLUSTERS_MAX:
                self.terms.clear()
            self.terms[leader.cluster_id] = leader.term

    def highest_term(self, cluster_id: str) -> int:
        """Returns the highest known term of a leader of the cluster; 0 if none is known."""
        return self.terms.get(cluster_id, 0)


class Finder:
    """See the module. ``clock`` returns monotonic seconds.

    ``state`` is the role that a node must have: "leader", "follower", or "any". ``cluster`` is the required name of the
    node's cluster; "": any. ``tunnel`` is the path of a WebSocket, or None: then nodes are reached by frames, and name
    each other's addresses of frames. Through WebSocket such a hint leads nowhere, unless the URL names the address.
    """

    def __init__(
        self,
        addresses: tuple[Address, ...],
        state: str,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random,
        cluster: str = "",
        tunnel: str | None = None,
    ) -> None:
        self.state = state
        self.tunnel = tunnel
        self._cluster = cluster
        self._addresses = addresses
        self.clock = clock
        self._jitter = jitter
        self._hint: Address | None = None
        self._hints_left = HINTS_MAX
        self._found: Address | None = None
        self._visited: set[Address] = set()
        self._unanswering: set[Address] = set()
        self._rounds = 0
        self._is_over = False  # this round, even if addresses are left
        self._avoided: Address | None = None  # broke off repeatedly: the others come before it
        self._broken: Address | None = None  # broke off soon, the last time
        self._opened_at: float | None = None
        self._peer: HelloOk | None = None  # of the connection that is open
        self._known = _Known()
        self._lost_at: float | None = None  # until the next greeting
        self._tries = 0  # that have failed since
        self._ends, self._failures, self._greetings = Sparing(clock), Sparing(clock), Sparing(clock)
        self.address = addresses[0]  # of the last try

    def another(self) -> Finder:
        """Returns a finder for another connection of the same client. It begins with the node that was found."""
        other = Finder(self._addresses, self.state, self.clock, self._jitter, self._cluster, self.tunnel)
        other._hint = other._found = self._found
        other._known = self._known
        return other

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of the URL."""
        return self._addresses

    @property
    def has_others(self) -> bool:
        """The URL names more than one node."""
        return len(self._addresses) > 1

    def try_seconds(self, connect_timeout_s: float) -> float:
        """Returns the seconds that the present try may take, if all tries together have ``connect_timeout_s``."""
        if self._addresses == (self.address,):
            return connect_timeout_s  # there is no other place to look
        return min(connect_timeout_s / len(self._addresses), TRY_SECONDS_MAX)

    def next_try(self) -> tuple[Address, float]:
        """Returns the address of the next try, and the seconds to wait before it. Report its failure to `failed`."""
        pause_s = 0.0
        address = None if self._is_over else self._pick()
        if address is None:
            self._is_over = False
            self._rounds += 1
            pause_s = backoff_seconds(self._rounds, self._jitter, RECONNECT_GROWTH)
            self._visited.clear()
            self._hints_left = HINTS_MAX
            address = self._pick()
            assert address is not None, "a new round has every address before it"
        self._visited.add(address)
        self.address = address
        return address, pause_s

    def check(self, peer: HelloOk) -> None:
        """Checks a node's greeting. Raises NotLeader or Unreachable if another node is to be asked."""
        self._unanswering.discard(self.address)
        check_cluster(self._cluster, peer, str(self.address))
        highest = self._known.highest_term(peer.cluster_id)
        if peer.role == "leader":
            self._check_same_cluster(peer)
            self._known.learn(peer)
        if self.state == "leader":
            if peer.role != "leader":
                hint = peer.leader if peer.term >= highest else None
                raise NotLeader(f"the node at {self.address} does not lead", leader=hint or None)
            if peer.term < highest:
                raise NotLeader(
                    f"the node at {self.address} leads in term {peer.term}, and another led in term {highest}"
                )
        elif self.state == "follower" and peer.role != "follower":
            raise Unreachable(f"the node at {self.address} leads, and state='follower' asks for one that follows")
        self._opened_at = self.clock()
        self._log_return()
        self._peer = peer
        self._found = self.address

    def _check_same_cluster(self, peer: HelloOk) -> None:
        """Raises NotLeader for a leader of another cluster than the first one, if the URL names other nodes.

        Rows would go to a feed of the same name there, while the own nodes are away. A single node may be made anew.
        """
        if self.state != "leader" or not self.has_others:
            return
        cluster_id = self._known.cluster_id = self._known.cluster_id or peer.cluster_id
        if peer.cluster_id != cluster_id:
            raise NotLeader(
                f"the node at {self.address} leads cluster {peer.cluster_id}, and this client has begun with cluster "
                f"{cluster_id}: take it out of the URL; or make a new client if the nodes were made anew"
            )

    def failed(self, error: Exception, *, progressed: bool = False) -> None:
        """Handles the end of a try or of its connection. ``progressed``: requests had their final answers on it."""
        opened_at, self._opened_at, self._peer = self._opened_at, None, None
        is_steady = opened_at is not None and self.clock() - opened_at >= STEADY_SECONDS
        if is_steady or (progressed and isinstance(error, NotLeader)):  # the leader's hint begins a new search
            self._rounds = 0
            self._visited = {self.address}
            self._hints_left = HINTS_MAX
        if isinstance(error, TailraceError) and not isinstance(error, Unreachable):
            self._broken = None
        elif opened_at is not None:
            self._begin_again(is_steady, progressed)
            return
        if not isinstance(error, NotLeader):
            if self.address in self._addresses:
                self._unanswering.add(self.address)
        elif error.leader and self.state == "leader" and self._hints_left:
            self._hints_left -= 1
            self._hint = self._hinted(error.leader)

    def log_loss(self, error: Exception, *, was_open: bool) -> None:
        """Logs the end of a connection, or of a try; of many only some."""
        now = self.clock()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if was_open:
            self._log(self._ends, "the connection to %s ended, and another is made: %s%s", self.address, error)
        else:
            self._tries += 1
            self._log(self._failures, "no connection to %s: %s%s", self.address, error)

    def _log_return(self) -> None:
        if self._lost_at is not None:
            seconds, tries = f"{self.clock() - self._lost_at:.1f}", self._tries
            text = "connected to %s after %s s without a node, and %s tries that failed%s"
            self._log(self._greetings, text, self.address, seconds, tries)
        self._lost_at, self._tries = None, 0

    @staticmethod
    def _log(kind: Sparing, text: str, *arguments: object) -> None:
        more = kind.note()
        log.log(logging.DEBUG if more is None else logging.INFO, text, *arguments, more or "")

    def _begin_again(self, is_steady: bool, progressed: bool) -> None:
        """Retries a node whose connection broke: first of all, or after the others if it broke off soon twice."""
        # A network that breaks is no reason to wait; `failed` has seen to a connection that was steady.
        self._rounds = 0 if progressed else min(self._rounds, GREETED_ROUNDS_MAX)
        self._is_over = True
        if is_steady or self._broken != self.address:
            self._hint = self.address
            self._broken = None if is_steady else self.address
        else:
            self._avoided, self._broken = self.address, None

    def _pick(self) -> Address | None:
        hint, self._hint = self._hint, None
        if hint is not None and hint not in self._visited:
            return hint
        left = [address for address in self._addresses if address not in self._visited]
        if left:
            return min(left, key=lambda address: (address in self._unanswering, address == self._avoided))
        return self._found if self._found not in self._visited else None

    def _hinted(self, text: str) -> Address | None:
        """Returns the address that a node has given; None if it cannot be parsed, or not be reached."""
        found = _address(text)
        return found if self.tunnel is None or found in self._addresses else None

    # Looking at the others

    @property
    def looks(self) -> bool:
        """The client looks at other nodes, because one of them may become the leader."""
        return self.state == "leader" and self.has_others

    def next_look(self, waits: bool) -> Address | None:
        """Returns the address of a node to look at now, or None. Report its greeting to `seen`.

        ``waits`` tells whether a request has waited for long.
        """
        if self._peer is None or not self.looks:
            return None
        known, now = self._known, self.clock()
        if known.to_look is not None:
            known.hinted = address = known.to_look
            known.to_look = None
        else:
            others = [address for address in self._addresses if address != self.address]
            address = min(others, key=lambda other: known.looked.get(other, float("-inf")))
            is_due = now - known.looked.get(address, float("-inf")) >= LOOK_SECONDS
            if not is_due and not (waits and now - known.looked_at >= LOOK_WAITING_SECONDS):
                return None
            known.looked[address], known.hinted = now, None
        known.looked_at = now
        return address

    def seen(self, address: Address, peer: HelloOk) -> None:
        """Handles the greeting of a node that was looked at. See `superseded`."""
        mine = self._peer
        if mine is None or peer.cluster_id != mine.cluster_id or peer.term <= mine.term:
            return
        if peer.role == "leader":
            self._known.learn(peer)
            self._known.leader = (peer.cluster_id, peer.term, address)
        elif address != self._known.hinted:  # hints of a hinted node are ignored: they may lead in circles
            self._known.to_look = self._hinted(peer.leader)

    def superseded(self) -> NotLeader | None:
        """Returns the reason to leave the present connection; None without a later leader. Report it to `failed`."""
        mine, leader = self._peer, self._known.leader
        if mine is None or leader is None:
            return None
        cluster_id, term, address = leader
        if self.state != "leader" or cluster_id != mine.cluster_id or term <= mine.term:
            return None
        self._visited = {self.address}
        self._hints_left = HINTS_MAX
        text = f"the node at {self.address} leads in term {mine.term}, and {address} in term {term}"
        return NotLeader(text, leader=str(address))


def check_cluster(wanted: str, peer: HelloOk, address: str) -> None:
    """Raises Unreachable if a node is of another cluster than the one that a URL names; "" names none."""
    if wanted and peer.cluster != wanted:
        found = f"cluster {peer.cluster!r}" if peer.cluster else "a cluster without a name (serve --cluster)"
        raise Unreachable(f"the node at {address} is of {found}, and the URL names cluster {wanted!r}")


def check_state(state: str) -> None:
    """Raises ValueError if ``state`` is not a state that a client may ask for."""
    if state not in STATES:
        raise ValueError(f"state is {state!r}, none of {', '.join(map(repr, STATES))}")


def _address(text: str) -> Address | None:
    """Parses the address that a node has given; None if it cannot be parsed."""
    try:
        return parse_address(text)
    except ValueError:
        return None
