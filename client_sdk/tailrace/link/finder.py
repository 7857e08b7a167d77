"""Which node to ask next, where any of several may be the one to ask. Pure: what nodes said in, the next try out.

    a round:  a hint ── the addresses of the URL, those that did not answer last of all ── where it was found before
              each address once at most, and nothing waits between two of them
    then a pause, longer after each round, and the next round

A hint is the address that a node gives for its leader. It may be old, and lead in circles: so it is followed once a
round, and only so many are. It may name a node that the URL does not.

1. A round ends: it has so many tries at most, each bounded in time by the shell.
2. Once there is one leader, and the nodes of the URL that live know it or can be reached in turn, the next whole round
   finds it.
3. A leader whose term is below that of another leader of its cluster is none: it does not know of its successor yet.
   The term of a node that follows counts for nothing: it may be a promise of which nothing came.
4. The pauses begin anew after a connection that was of use: one that lasted for a while, or on which the session came
   further. They grow after one that broke sooner, though the node had said hello. So a node that hangs up at once, or
   that says that it leads and then refuses everything, is not asked in a hot loop.

A node that was cut off from the others may go on leading, in its old term, clients that reach it. So a client with
several addresses looks at the others now and then, by a HELLO of its own, while it is served: each once every
``LOOK_SECONDS``, and one every ``LOOK_WAITING_SECONDS`` while it waits for an answer. It leaves its leader only for a
node that says itself that it leads, in a higher term: a higher term alone may be a promise of which nothing came.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING

from tailrace.errors import NotLeader, TailraceError, Unreachable
from tailrace.link.address import Address, parse_address
from tailrace.link.backoff import backoff_seconds

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk

STATES = ("leader", "follower", "any")
# Hints that are followed in one round: a set is of a few nodes, and a chain of hints that is longer is a circle.
HINTS_MAX = 8
# One try, where there are others to be made: a machine that is gone takes no more than that of each round.
TRY_SECONDS_MAX = 3.0
# Rounds after which pauses grow no more while nodes say hello: about half a second. A network that breaks within each
# large block lets no answer through, and only many tries bring the block there.
GREETED_ROUNDS_MAX = 4
# A connection that lasted so long was of use: what comes after it is a new search.
STEADY_SECONDS = 2.0
# Each of the other addresses is looked at so often: an old leader loses what it takes meanwhile at level disk.
LOOK_SECONDS = 30.0
# One of them, while something waits for an answer: which a leader that no majority hears does not give at quorum.
LOOK_WAITING_SECONDS = 3.0
# Whether a look is due is asked so often, and a look may take so long: a node that lives says hello in milliseconds.
LOOK_TICK_SECONDS = 0.5
LOOK_TIMEOUT_SECONDS = 0.3
# Clusters whose terms are remembered; the nodes of a URL are of one.
_CLUSTERS_MAX = 16


class _Known:
    """What the connections of one client have learnt of the nodes, in common."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}  # by cluster id: the highest that a node was seen to lead in
        self.leader: tuple[str, int, Address] | None = None  # the latest that a look has found: cluster id, term
        self.looked: dict[Address, float] = {}  # of the URL's: when
        self.looked_at = float("-inf")
        self.to_look: Address | None = None  # whom a node that was looked at has named
        self.hinted: Address | None = None  # who was looked at last, where another one had named it

    def learn(self, leader: HelloOk) -> None:
        """Takes note of the term that a node leads in."""
        if leader.term > self.highest_term(leader.cluster_id):
            if len(self.terms) >= _CLUSTERS_MAX:
                self.terms.clear()
            self.terms[leader.cluster_id] = leader.term

    def highest_term(self, cluster_id: str) -> int:
        """Returns the highest term that a node of the cluster was seen to lead in; 0 if none was."""
        return self.terms.get(cluster_id, 0)


class Finder:
    """See the module. ``clock`` gives monotonic seconds.

    ``state``: what a node has to be: "leader", "follower", or "any". ``cluster``: the name that the node's cluster
    has to have; "": any.
    """

    def __init__(
        self,
        addresses: tuple[Address, ...],
        state: str,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random,
        cluster: str = "",
    ) -> None:
        self.state = state
        self._cluster = cluster
        self._addresses = addresses
        self._clock = clock
        self._jitter = jitter
        self._hint: Address | None = None
        self._hints_left = HINTS_MAX
        self._found: Address | None = None
        self._visited: set[Address] = set()
        self._unanswering: set[Address] = set()
        self._rounds = 0
        self._is_over = False  # this round, whomever it has not asked
        self._avoided: Address | None = None  # broke off again and again: the others come before it
        self._broken: Address | None = None  # broke off soon, the last time
        self._opened_at: float | None = None
        self._peer: HelloOk | None = None  # of the connection that is open
        self._known = _Known()
        self.address = addresses[0]  # of the last try

    def another(self) -> Finder:
        """One for another connection of the same client: it begins where this one has found the node."""
        other = Finder(self._addresses, self.state, self._clock, self._jitter, self._cluster)
        other._hint = other._found = self._found
        other._known = self._known
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
        address = None if self._is_over else self._pick()
        if address is None:
            self._is_over = False
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
        check_cluster(self._cluster, peer, str(self.address))
        highest = self._known.highest_term(peer.cluster_id)
        if peer.role == "leader":
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
        self._opened_at = self._clock()
        self._peer = peer
        self._found = self.address

    def failed(self, error: Exception, *, progressed: bool = False) -> None:
        """Takes note that the try has ended, or the connection that came of it; ``progressed``: it was of use."""
        opened_at, self._opened_at, self._peer = self._opened_at, None, None
        is_steady = opened_at is not None and self._clock() - opened_at >= STEADY_SECONDS
        if is_steady:
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
            self._hint = _address(error.leader)

    def _begin_again(self, is_steady: bool, progressed: bool) -> None:
        """Only the connection is gone: the same node comes first, or after the others where that was so before."""
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

    # Looking at the others

    @property
    def looks(self) -> bool:
        """There are others, one of which may come to lead."""
        return self.state == "leader" and self.has_others

    def next_look(self, waits: bool) -> Address | None:
        """Whom to say hello to now, besides; None: nobody. Tell `seen` what it says, if anything.

        ``waits``: something has no answer yet.
        """
        if self._peer is None or not self.looks:
            return None
        known, now = self._known, self._clock()
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
        """The node at ``address`` has said hello to a look. See `superseded`."""
        mine = self._peer
        if mine is None or peer.cluster_id != mine.cluster_id or peer.term <= mine.term:
            return
        if peer.role == "leader":
            self._known.learn(peer)
            self._known.leader = (peer.cluster_id, peer.term, address)
        elif address != self._known.hinted:  # what a hint has led to is asked for no other: they may lead in circles
            self._known.to_look = _address(peer.leader)

    def superseded(self) -> NotLeader | None:
        """What to leave the present connection for; None where no later leader has been seen. Tell `failed`."""
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
    """ValueError where ``state`` is none that a client may ask for."""
    if state not in STATES:
        raise ValueError(f"state is {state!r}, none of {', '.join(map(repr, STATES))}")


def _address(text: str) -> Address | None:
    """What a node gave as an address; None where it is none."""
    try:
        return parse_address(text)
    except ValueError:
        return None
