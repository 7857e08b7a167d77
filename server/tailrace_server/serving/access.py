"""What a connection may ask: the role that each request needs, and the feeds and keys that it is about.

    frame ── opcode ──> PERMITTED[role]? ── no ──> Forbidden
                              │ yes
                        handler, which has decoded the frame ── feed, keys ──> Access.require_... ──> Forbidden

The role is checked for every frame, by one look-up. Feed and keys are checked by the handlers, which have decoded them:
for a block by whole columns. RULES says for each opcode what its handler checks, and a test asks them all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block.filtering import begin_with
from tailrace.errors import Forbidden
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME
from tailrace_server.serving.audit import AUDITED
from tailrace_server.state.last_batches import JOB_PREFIX
from tailrace_server.state.principal import OPEN, WITHOUT_HELLO, Principal

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.wire.filters import StreamFilter
    from tailrace_server.feeds.catalog import Catalog


class Subject(enum.Enum):
    """What a request is about, and so what its handler checks besides the role."""

    CONNECTION = "the connection itself, and what it has opened"
    NODE = "the node"
    FEED = "a feed"
    KEYS = "keys of a feed"
    LISTED_FEEDS = "all feeds that the token may use"


class Rule(NamedTuple):
    """The roles that may send a request, any of them, and what the request is about."""

    roles: frozenset[str]
    subject: Subject


_ALL = frozenset(("read", "write", "admin", "replica"))
_WRITE = frozenset(("write", "admin"))
_ADMIN = frozenset(("admin",))
_NODES = frozenset(("replica",))
_ADMIN_OR_NODES = _ADMIN | _NODES

RULES: dict[Opcode, Rule] = {
    Opcode.HELLO: Rule(_ALL, Subject.CONNECTION),
    Opcode.NOOP: Rule(_ALL, Subject.CONNECTION),
    Opcode.TRACE: Rule(_ALL, Subject.CONNECTION),
    Opcode.STATUS: Rule(_ALL, Subject.LISTED_FEEDS),
    Opcode.LIST_FEEDS: Rule(_ALL, Subject.LISTED_FEEDS),
    Opcode.PARTITIONS: Rule(_ALL, Subject.FEED),
    Opcode.EXPLAIN_RESUME: Rule(_ALL, Subject.KEYS),
    Opcode.PROGRESS: Rule(_ALL, Subject.FEED),
    Opcode.CONSUMER_JOIN: Rule(_ALL, Subject.FEED),
    Opcode.CONSUMER_COMMIT: Rule(_ALL, Subject.FEED),
    Opcode.CONSUMER_RENEW: Rule(_ALL, Subject.FEED),
    Opcode.CONSUMER_RELEASE: Rule(_ALL, Subject.FEED),
    Opcode.CONSUMER_STATUS: Rule(_ALL, Subject.FEED),
    Opcode.CONSUMER_RESET: Rule(_ALL, Subject.FEED),
    Opcode.GET: Rule(_ALL, Subject.KEYS),
    Opcode.STREAM_REQUEST: Rule(_ALL, Subject.KEYS),
    Opcode.STREAM_CLOSE: Rule(_ALL, Subject.CONNECTION),
    Opcode.CREDIT: Rule(_ALL, Subject.CONNECTION),
    Opcode.BARRIER: Rule(_ALL, Subject.CONNECTION),
    Opcode.SEGMENT_CHECKPOINT: Rule(_ALL, Subject.KEYS),
    Opcode.SEGMENT_FETCH: Rule(_ALL, Subject.CONNECTION),  # by the checkpoint's id, which is random
    Opcode.SEGMENT_RELEASE: Rule(_ALL, Subject.CONNECTION),
    Opcode.WRITE: Rule(_WRITE, Subject.KEYS),
    Opcode.STAGE_BLOCK: Rule(_WRITE, Subject.KEYS),
    Opcode.STAGE_SEAL: Rule(_WRITE, Subject.FEED),
    Opcode.PUBLISH: Rule(_WRITE, Subject.KEYS),  # by the name of the sink
    Opcode.CREATE_FEED: Rule(_ADMIN, Subject.NODE),
    Opcode.SET_FEED: Rule(_ADMIN, Subject.NODE),
    Opcode.DROP_FEED: Rule(_ADMIN, Subject.NODE),
    Opcode.CREATE_TOKEN: Rule(_ADMIN, Subject.NODE),
    Opcode.LIST_TOKENS: Rule(_ADMIN, Subject.NODE),
    Opcode.REVOKE_TOKEN: Rule(_ADMIN, Subject.NODE),
    Opcode.PROMOTE: Rule(_ADMIN, Subject.NODE),
    Opcode.HANDOVER: Rule(_ADMIN, Subject.NODE),
    Opcode.MEMBER_CHANGE: Rule(_ADMIN, Subject.NODE),
    Opcode.MEMBER: Rule(_ADMIN_OR_NODES, Subject.NODE),
    Opcode.PROMISE: Rule(_NODES, Subject.NODE),
    Opcode.TAKE_OVER: Rule(_NODES, Subject.NODE),
    Opcode.ACCEPTED_SEQS: Rule(_NODES, Subject.NODE),
    Opcode.STAGE_COPIES: Rule(_NODES, Subject.NODE),
    Opcode.STAGE_FETCH: Rule(_NODES, Subject.NODE),
    Opcode.REPLICA_ACK: Rule(_NODES, Subject.CONNECTION),
    Opcode.LEADER_CONFIRM: Rule(_NODES, Subject.CONNECTION),
    Opcode.SEGMENT_ACCEPT: Rule(_NODES, Subject.CONNECTION),
    Opcode.SEGMENT_DECLINE: Rule(_NODES, Subject.CONNECTION),
    Opcode.SEGMENT_ACK: Rule(_NODES, Subject.CONNECTION),
}
# The requests that each role may send.
PERMITTED: dict[str, frozenset[Opcode]] = {
    role: frozenset(opcode for opcode, rule in RULES.items() if role in rule.roles) for role in _ALL
}
PERMITTED[OPEN.role] = frozenset(Opcode)
PERMITTED[WITHOUT_HELLO.role] = frozenset((Opcode.HELLO,))
# The requests whose bodies are dropped as they come, since the role lacks them. The audit log tells of the others.
DROPPED: dict[str, frozenset[Opcode]] = {
    role: frozenset(RULES) - permitted - AUDITED for role, permitted in PERMITTED.items()
}
# Roles that may use all feeds and keys, ``_feeds`` among them.
_UNLIMITED = frozenset((OPEN.role, "admin", "replica"))


# The feeds of which a connection keeps that it may use them.
KNOWN_FEEDS_MAX = 128


class Access:
    """The checks of one principal. Its feeds are looked up by name, so a dropped and recreated feed counts."""

    def __init__(self, principal: Principal, feeds: Catalog) -> None:
        self.principal = principal
        self.permitted = PERMITTED[principal.role]
        self.dropped = DROPPED[principal.role]
        self.is_limited = principal.role not in _UNLIMITED
        self._feeds = feeds
        # The ids of feeds that the principal may use: an id keeps its name, and a feed that is made anew has another.
        self._known: set[bytes] = set()

    @property
    def is_of_node(self) -> bool:
        """Whether the principal may be another node."""
        return self.principal.role in (OPEN.role, "replica")

    def refusal(self, opcode: Opcode) -> Forbidden:
        """Returns the error for a request whose role the principal lacks."""
        rule = RULES.get(opcode)
        needed = " or ".join(sorted(rule.roles)) if rule else "another"
        return Forbidden(f"{self.principal} may not send {opcode.name}: role {needed} is needed")

    def shows(self, name: str) -> bool:
        """Returns whether a list of feeds has the feed of this name."""
        return not self.principal.feeds or name in self.principal.feeds

    def require_feed(self, feed_id: bytes) -> None:
        """Raises Forbidden unless the principal may use the feed. The handler answers for an unknown one."""
        if not self.is_limited or feed_id in self._known:
            return
        if feed_id == SYSTEM_FEED_ID:
            self.require_feed_named(SYSTEM_FEED_NAME)
        feed = self._feeds.find(feed_id)
        if feed is not None:
            if not self.shows(feed.info.name):
                # Its name is not told: the id may come from a position of someone else.
                raise Forbidden(f"{self.principal} may not use feed {feed_id.hex()}: a token for that feed is needed")
            if len(self._known) >= KNOWN_FEEDS_MAX:
                self._known.clear()
            self._known.add(feed_id)

    def require_feed_named(self, name: str) -> None:
        """Raises Forbidden unless the principal may use the feed of this name."""
        if self.is_limited and name == SYSTEM_FEED_NAME:
            raise Forbidden(f"{self.principal} may not use {SYSTEM_FEED_NAME}: role admin or replica is needed")
        if not self.shows(name):
            raise Forbidden(f"{self.principal} may not use feed {name!r:.200}: a token for that feed is needed")

    def require_all_feeds(self) -> None:
        """Raises Forbidden unless the principal may know of all feeds."""
        if self.principal.feeds:
            raise Forbidden(f"{self.principal} may not see what is told of all feeds: use a token without --feed")

    def require_keys(self, feed_id: bytes, keys: Iterable[bytes]) -> None:
        """Raises Forbidden unless the principal may use these keys of the feed."""
        if not self.is_limited:
            return
        self.require_feed(feed_id)
        prefix = self.principal.key_prefix
        if prefix and not all(key.startswith(prefix) for key in keys):
            raise self._other_keys("a key begins otherwise")

    def require_block(self, feed_id: bytes, block: Block) -> None:
        """Raises Forbidden unless the principal may write all rows of this block, which is compared by columns.

        Raises BadBlock if the block breaks its format.
        """
        if not self.is_limited:
            return
        self.require_feed(feed_id)
        if self.principal.key_prefix and not begin_with(block, self.principal.key_prefix):
            raise self._other_keys("a row's key begins otherwise")

    @property
    def sink_prefix(self) -> bytes:
        """The bytes with which the names of the principal's sinks begin; b"" for any name."""
        return self.principal.key_prefix if self.is_limited else b""

    def require_sink(self, feed_id: bytes, sink: str) -> None:
        """Raises Forbidden unless the principal may publish batches of the feed under this name.

        Who publishes under a name decides which numbers are taken. So a name belongs to keys as a key does.
        """
        if not self.is_limited:
            return
        self.require_feed(feed_id)
        prefix = self.sink_prefix
        if prefix and not sink.removeprefix(JOB_PREFIX).encode(errors="surrogatepass").startswith(prefix):
            raise Forbidden(
                f"{self.principal} may publish only as a sink whose name begins with its key prefix, or with "
                f"{JOB_PREFIX} and its key prefix, not as {sink!r:.100}: give such a sink_id"
            )

    def require_stream(self, feed_id: bytes, wanted: StreamFilter) -> None:
        """Raises Forbidden unless the principal may have all rows that the filter selects."""
        if not self.is_limited:
            return
        self.require_feed(feed_id)
        prefix = self.principal.key_prefix
        if not wanted.key_prefix.startswith(prefix):
            raise self._other_keys(
                f"the stream asks for key_prefix={wanted.key_prefix!r:.200}; ask for {prefix!r:.200}"
            )

    def require_whole(self, feed_id: bytes) -> None:
        """Raises Forbidden unless the principal may have all rows of the feed."""
        if not self.is_limited:
            return
        self.require_feed(feed_id)
        if self.principal.key_prefix:
            raise self._other_keys("segments have all keys; ask for a stream")

    def require_replica(self) -> None:
        """Raises Forbidden unless the principal may follow this node as a replica."""
        if not self.is_of_node:
            raise Forbidden(f"{self.principal} may not follow as a replica: role replica is needed")

    def _other_keys(self, why: str) -> Forbidden:
        return Forbidden(f"{self.principal} may use only keys that begin with its prefix, and {why}")
