"""The client without I/O: its options, its session, and the plans of its calls. Every shell has one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from tailrace.block.encode import keep_freed_memory
from tailrace.errors import TailraceError, Unreachable
from tailrace.link.address import parse_url
from tailrace.link.connection import LinkCore
from tailrace.link.finder import Finder, check_state
from tailrace.link.forks import Unpicklable
from tailrace.model import FEED_ID_BYTES, FeedInfo, NodeStatus, Resolved, TokenInfo, TokenRole
from tailrace.model.arguments import count, seconds
from tailrace.requests.changes import changes_request, check_kept, creation_request
from tailrace.requests.lane import Lanes, random_producer_id
from tailrace.requests.plan import Call, Plan
from tailrace.requests.replies import feed_info, feed_infos, node_status, resolved, token_infos
from tailrace.requests.session import RequestSession
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode

# The feeds of which a client keeps id and partitions: far more than programs use, and less than a megabyte.
FEEDS_KNOWN_MAX = 4_096


class ClientCore(Unpicklable):
    """The state of a client that all shells share. Its methods never wait.

    ``clock`` gives monotonic seconds. ``source`` gives the ids of feeds and producers and spreads retries.
    ``new_session`` gives the secret by which a node recognises the connections of one session (`Hello`).
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        name: str | None,
        connect_timeout: float,
        retry_for: float,
        state: str,
        clock: Callable[[], float],
        source: random.Random,
        new_session: Callable[[], str],
    ) -> None:
        self._addresses, self._cluster, self.secure, self.tunnel = parse_url(url)
        check_state(state)
        self.url = url
        self.connect_timeout_s = seconds("connect_timeout", connect_timeout)
        self.retry_for_s = seconds("retry_for", retry_for)
        self.state = state
        self.clock = clock
        self.source = source
        self.hello = Hello(name=name or "", token=token)
        self._new_session = new_session
        self._feeds: dict[str, Resolved] = {}  # those that handles have asked for, by name
        keep_freed_memory()
        self._begin()

    def _begin(self) -> None:
        random, clock, state = self.source.random, self.clock, self.state
        self.finder = Finder(self._addresses, state, clock, random, self._cluster, self.tunnel)
        self.session = RequestSession(self.hello, clock, random, state, self.finder.check, self._new_session())
        self.link = LinkCore(self.session, self.finder, self.connect_timeout_s)
        self.lanes = Lanes(self.new_producer_id)

    def begin_anew(self) -> None:
        """Begins as a client that was just made: with no request, producer or secret of the process before a fork.

        It still knows what the node said in its last greeting.
        """
        before = self.session
        self._begin()
        self.session.know_from(before)

    def of_leader(self, connect_timeout_s: float) -> ClientCore:
        """Returns another client that asks only the leader. This one may read from followers."""
        return ClientCore(
            self.url,
            token=self.hello.token,
            name=self.hello.name,
            connect_timeout=connect_timeout_s,
            retry_for=self.retry_for_s,
            state="leader",
            clock=self.clock,
            source=self.source,
            new_session=self._new_session,
        )

    def know(self, name: str, feed: Resolved) -> None:
        """Notes the id and the number of partitions of a feed, for later handles."""
        if len(self._feeds) >= FEEDS_KNOWN_MAX:
            self._feeds.clear()
        self._feeds[name] = feed

    def known(self, name: str) -> Resolved | None:
        """Returns the answer that a handle of this feed has had. The feed may have been dropped since."""
        return self._feeds.get(name)

    def forget(self, name: str) -> None:
        """Forgets the id of a feed."""
        self._feeds.pop(name, None)

    def new_producer_id(self) -> int:
        """Returns the id of a new producer."""
        return random_producer_id(self.source)

    def unreachable(self) -> Unreachable:
        """Returns the error for a client that could not connect in time."""
        reason = self.session.last_error or "nothing heard from a node"
        waited = f"within {self.connect_timeout_s:g} s"
        where = ", ".join(map(str, self._addresses))
        return Unreachable(f"no node at {where} could be used {waited}: {reason}")

    @property
    def reads_followers(self) -> bool:
        """Reads may return less than was acknowledged, because a follower may answer them."""
        return self.state != "leader"

    @property
    def cluster_id(self) -> bytes:
        """The id of the cluster of the node that answered last, 16 bytes. Raises Unreachable before that."""
        if self.session.peer is None:
            raise Unreachable("the client has not connected yet")
        return bytes.fromhex(self.session.peer.cluster_id)

    @property
    def takes_progress(self) -> bool:
        """Whether the node knows PROGRESS, as nodes do since 0.2."""
        return self.session.peer is not None and self.session.peer.takes_progress

    @property
    def peer_role(self) -> str:
        """The role of the node that answered last, "leader" or "follower". Raises Unreachable before that."""
        if self.session.peer is None:
            raise Unreachable("the client has not connected yet")
        return self.session.peer.role

    def stream_hello(self, window_bytes: int) -> Hello:
        """Returns the greeting of a stream's connection. Raises ValueError for a ``window_bytes`` below 1."""
        return self.hello._replace(window_bytes=count("window_bytes", window_bytes, 1))

    # The calls

    def create_feed(
        self,
        name: str,
        *,
        partitions: int | None = None,
        keyspace: str | None = None,
        retention: str | None = None,
        history_age_s: float | None = None,
        history_bytes: int | None = None,
        tombstone_age_s: float | None = None,
        replication: str | None = None,
        level: str | None = None,
        ttl_s: float | None = None,
        exist_ok: bool,
    ) -> Plan[None]:
        """Creates a feed, or returns the existing one. The feed is on disk when this returns.

        A setting that is None is not compared with an existing feed, and a new feed gets its default.

        Args:
            name: 1 to 100 of ``a-z 0-9 . _ -``. The first character is a letter or a digit.
            partitions: The number of partitions, 1 to 4,096, which never changes. Default 16.
            keyspace: "hash", which is the default and the only one.
            retention: "compact", the default, keeps the latest mutation of each key. "history" keeps all mutations.
            history_age_s: The seconds that a history feed keeps a mutation at least. Default: for ever.
            history_bytes: The bytes that a history feed keeps at least, an even share in each partition. Default: all.
            tombstone_age_s: The seconds that a compact feed keeps a deletion at least. Default 259,200, which is three
                days.
            replication: "stream", the default, sends each mutation to followers. "segment" sends them whole segments,
                seconds later, for less of their processor time under load; level quorum is refused then.
            level: "memory", "disk" or "quorum": the level of writes to the feed that name none. "default", the
                default, leaves it to the node: quorum in a set, disk elsewhere and with replication "segment".
            ttl_s: The seconds after which a key expires whose put names no ttl, 1 to 315,360,000 (ten years). The
                leader then deletes the key. Default: it does not expire.
            exist_ok: If False, `FeedExists` is raised even if the existing feed has the same settings.

        Returns:
            A handle of the feed.

        Raises:
            FeedExists: The feed exists and a given setting differs from its own.
            Forbidden: The level is quorum, and the node is in no set, or replication is "segment".
            TailraceError: A setting is outside its bounds, the node has as many feeds as it can hold, or it is older
                than levels of feeds, and has created the feed without.
            Retryable: No node could create it in time.
        """
        value = creation_request(
            name,
            self.source.randbytes(FEED_ID_BYTES),
            exist_ok,
            partitions=partitions,
            keyspace=keyspace,
            retention=retention,
            history_age_s=history_age_s,
            history_bytes=history_bytes,
            tombstone_age_s=tombstone_age_s,
            replication=replication,
            level=level,
            ttl_s=ttl_s,
        )
        answer = yield Call(Opcode.CREATE_FEED, value)
        if level is not None or ttl_s is not None:
            check_kept(feed_info(answer), value)

    def feeds(self) -> Plan[list[FeedInfo]]:
        """Lists the feeds of the node.

        Returns:
            A description of each feed, in the order of the names.

        Raises:
            Retryable: No node has answered in time.
        """
        return feed_infos((yield Call(Opcode.LIST_FEEDS, {})))

    def set_feed(
        self,
        name: str,
        *,
        replication: str | None,
        history_age_s: float | None,
        history_bytes: float | None,
        tombstone_age_s: float | None,
        level: str | None,
        ttl_s: float | None,
    ) -> Plan[FeedInfo]:
        """Changes settings of a feed. A setting that is None stays as it is.

        Its mutations stay. Retention goes by the new ages and sizes from its next pass on. A mutation that is gone
        does not come back. A new level holds for the next block of each writer.

        Args:
            name: The name of the feed.
            replication: "stream" or "segment", as in `create_feed`.
            history_age_s: The seconds that a history feed keeps a mutation at least; ``math.inf``: for ever.
            history_bytes: The bytes that a history feed keeps at least; ``math.inf``: all.
            tombstone_age_s: The seconds that a compact feed keeps a deletion at least.
            level: "memory", "disk", "quorum" or "default", as in `create_feed`.
            ttl_s: The seconds after which a key expires whose put names no ttl; ``math.inf``: it does not. It holds
                for rows that are there already, too.

        Returns:
            A description of the feed with the new settings, which are on disk, and in a set on a majority's.

        Raises:
            UnknownFeed: There is no feed of this name.
            ValueError: No setting is given, one is no number, or the level does not exist.
            Forbidden: The level is quorum, and the node is in no set, or replication is or becomes "segment".
            TailraceError: A setting is outside its bounds, or is for feeds of the other retention; or the node is
                older than levels of feeds.
            Retryable: No node could change it in time.
        """
        changes = changes_request(
            replication=replication,
            history_age_s=history_age_s,
            history_bytes=history_bytes,
            tombstone_age_s=tombstone_age_s,
            level=level,
            ttl_s=ttl_s,
        )
        feed = resolved((yield Call(Opcode.PARTITIONS, {"name": name})))
        info = feed_info((yield Call(Opcode.SET_FEED, {"feed_id": feed.feed_id.hex(), **changes})))
        check_kept(info, changes)
        return info

    def drop_feed(self, name: str) -> Plan[None]:
        """Drops a feed with all its data. Streams of the feed end with the reason "feed_dropped".

        Args:
            name: The name of the feed.

        Raises:
            UnknownFeed: There is no feed of this name.
            Retryable: No node could drop it in time.
        """
        self.forget(name)
        feed = resolved((yield Call(Opcode.PARTITIONS, {"name": name})))
        yield Call(Opcode.DROP_FEED, {"feed_id": feed.feed_id.hex()})

    def create_token(
        self,
        name: str,
        *,
        role: TokenRole,
        feeds: Iterable[str],
        key_prefix: bytes,
        expires_s: float | None,
        certificate: str | None,
    ) -> Plan[str]:
        """Creates a token. This program makes the secret, and the nodes get only a hash of it.

        With ``certificate``, gives the rights to clients that show this certificate, and makes no secret.

        Needs the role "admin" if the node requires tokens.

        Args:
            name: 1 to 100 of ``a-z 0-9 . _ -``. The first character is a letter or a digit. Names are unique.
            role: "read", "write" (and read), "admin" (everything that an operator does), or "replica" (for nodes).
            feeds: The names of the feeds that the token may use, at most 100. Empty: all. Only for "read" and "write".
            key_prefix: The keys that the token may read and write begin with this. Only for "read" and "write".
            expires_s: The seconds after which the token expires; None: never.
            certificate: ``CN=``, ``DNS:``, ``URI:``, ``email:`` or ``IP:`` and a name in certificates, or ``SHA256:``
                and the hash of one. None: a token.

        Returns:
            The token, a secret that cannot be shown again; "" for a certificate. It is durable, and in a set on a
            majority.

        Raises:
            ValueError: An argument is outside its bounds.
            Forbidden: The token of this client has another role.
            TailraceError: There is a token of this name or certificate, or the cluster has as many as it can hold.
            Retryable: No node could create it in time.
        """
        from tailrace.requests.token_request import token_request  # most programs never create one

        token, value = token_request(name, role, feeds, key_prefix, expires_s, certificate)
        yield Call(Opcode.CREATE_TOKEN, value)
        return token

    def tokens(self) -> Plan[list[TokenInfo]]:
        """Lists the tokens, without their secrets. Needs the role "admin" if the node requires tokens.

        Returns:
            A description of each token, in the order of the names. Expired tokens are listed until they are revoked.

        Raises:
            Forbidden: The token of this client has another role.
            Retryable: No node has answered in time.
        """
        return token_infos((yield Call(Opcode.LIST_TOKENS, {})))

    def revoke_token(self, name: str) -> Plan[None]:
        """Revokes a token. Connections that use it end within a second, on all nodes.

        Needs the role "admin" if the node requires tokens.

        Args:
            name: The name of the token.

        Raises:
            Forbidden: The token of this client has another role.
            TailraceError: There is no token of this name.
            Retryable: No node could revoke it in time.
        """
        found = [info for info in token_infos((yield Call(Opcode.LIST_TOKENS, {}))) if info.name == name]
        if not found:
            raise TailraceError(f"there is no token {name!r:.200}; list the tokens there are")
        yield Call(Opcode.REVOKE_TOKEN, {"token_id": found[0].token_id.hex()})

    def status(self) -> Plan[NodeStatus]:
        """Asks the node for its status.

        Returns:
            The node's identity, health and counters.

        Raises:
            Retryable: No node has answered in time.
        """
        return node_status((yield Call(Opcode.STATUS, {})))
