"""``tailrace.connect``: a client of one node, or of a set of them."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

import trio

from tailrace.block import Block
from tailrace.consuming.wanted import Wanted
from tailrace.errors import TailraceError, Unreachable, WrongProcess
from tailrace.link.address import parse_url
from tailrace.link.finder import Finder, check_state
from tailrace.link.forks import OfOneProcess
from tailrace.model import FeedInfo, Item, Level, NodeStatus, Version, VersionRange
from tailrace.model.arguments import count, seconds
from tailrace.requests.changes import creation_request
from tailrace.requests.lane import Done, Lane, Lanes, WriteRequest, random_producer_id
from tailrace.requests.replies import feed_infos, node_status, resolved
from tailrace.requests.session import Request, RequestSession
from tailrace.requests.staging import StageRequest
from tailrace.trio.feed import Feed
from tailrace.trio.host import Host
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.link import RequestLink
from tailrace.trio.stream import Stream
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode

_T = TypeVar("_T")


class _Waiter(Generic[_T]):
    """A task's side of a request. One task waits at most, so it needs less than a trio.Event, and is woken in less."""

    __slots__ = ("_task", "error", "finished", "result")

    def __init__(self) -> None:
        self.finished = False
        self.result: _T | None = None
        self.error: TailraceError | None = None
        self._task: trio.lowlevel.Task | None = None

    def done(self, result: _T | None, error: TailraceError | None) -> None:
        self.finished, self.result, self.error = True, result, error
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> _T:
        """Waits for the answer and returns it, or raises its error. Always a checkpoint."""
        if self.finished:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def _abort(self, _: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Client(OfOneProcess):
    """A connection to the leader, or to another node, that the client restores when it breaks. Made by `connect`.

    All tasks of one trio run may share a client. It must not be used from another thread or another trio run. In a
    forked process every call raises `WrongProcess`, also the calls of the client's feeds, writers, stages, streams and
    followers.

    If a call of the client or of a `Feed` is cancelled, a request that was not sent yet is never sent. A request that
    was sent may still be carried out. It is not sent again after a lost connection, and its outcome stays unknown.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        name: str | None = None,
        connect_timeout: float = 10.0,
        retry_for: float = 30.0,
        state: str = "leader",
        host: Host | None = None,
    ) -> None:
        self._addresses, cluster = parse_url(url)
        check_state(state)
        connect_timeout, retry_for = seconds("connect_timeout", connect_timeout), seconds("retry_for", retry_for)
        self._url = url
        self._hello = Hello(name=name or "", token=token)
        self.host = host = Host() if host is None else host
        self._connect_timeout_s = connect_timeout
        self._retry_for_s = retry_for
        self._finder = finder = Finder(self._addresses, state, trio.current_time, host.random.random, cluster)
        self._session = RequestSession(
            self._hello, trio.current_time, host.random.random, state, finder.check, host.new_session()
        )
        self._link = RequestLink(self._session, finder, connect=host.connect, connect_timeout_s=connect_timeout)
        self._lifetime = Lifetime()
        self.lanes = Lanes(partial(random_producer_id, host.random))
        self._register()

    async def __aenter__(self) -> Client:
        """Connects. Raises Unreachable where no node has answered within ``connect_timeout`` seconds, or Forbidden."""
        self.check_process()
        await self._lifetime.__aenter__()
        self._lifetime.start(self._link.run)
        self._lifetime.start(self._link.tick)
        self._lifetime.start(self._link.keep)
        self._lifetime.start(self._link.look)
        try:
            with trio.move_on_after(self._connect_timeout_s):
                await self._link.opened.wait()
            if not self._link.opened.is_set():
                addresses = ", ".join(map(str, self._addresses))
                raise Unreachable(
                    f"no node at {addresses} could be used within {self._connect_timeout_s:g} s: "
                    f"{self._session.last_error or 'no answer'}"
                )
        except BaseException as error:
            if await self._lifetime.__aexit__(type(error), error, error.__traceback__):
                raise AssertionError("a failed start is never swallowed") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        swallowed = await self._lifetime.__aexit__(kind, error, traceback)
        self._session.fail_all(Unreachable("the client was closed", outcome="unknown"))
        return swallowed

    def _forked(self, error: WrongProcess) -> None:
        self._session.refuse(error)
        self._link.abandon()

    # Feeds

    async def create_feed(
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
        exist_ok: bool = True,
    ) -> Feed:
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
            replication: "stream", which is the default and the only one.
            exist_ok: If False, `FeedExists` is raised even if the existing feed has the same settings.

        Returns:
            A handle of the feed.

        Raises:
            FeedExists: The feed exists and a given setting differs from its own.
            TailraceError: A setting is outside its bounds, or the node has as many feeds as it can hold.
            Retryable: No node could create it within ``retry_for`` seconds.
        """
        value = creation_request(
            name,
            self.host.random.randbytes(16),
            exist_ok,
            partitions=partitions,
            keyspace=keyspace,
            retention=retention,
            history_age_s=history_age_s,
            history_bytes=history_bytes,
            tombstone_age_s=tombstone_age_s,
            replication=replication,
        )
        await self.call(Opcode.CREATE_FEED, value)
        return Feed(self, name)

    def feed(self, name: str) -> Feed:
        """Returns a handle of a feed without asking the node.

        Args:
            name: The name of the feed. If it does not exist, the first call of the handle raises `UnknownFeed`.

        Returns:
            A handle that all tasks of one trio run may share.
        """
        return Feed(self, name)

    async def feeds(self) -> list[FeedInfo]:
        """Lists the feeds of the node.

        Returns:
            A description of each feed, in the order of the names.

        Raises:
            Retryable: No node has answered within ``retry_for`` seconds.
        """
        value = await self.call(Opcode.LIST_FEEDS, {})
        return feed_infos(value)

    async def drop_feed(self, name: str) -> None:
        """Drops a feed with all its data. Streams of the feed end with the reason "feed_dropped".

        Args:
            name: The name of the feed.

        Raises:
            UnknownFeed: There is no feed of this name.
            Retryable: No node could drop it within ``retry_for`` seconds.
        """
        feed = resolved(await self.call(Opcode.PARTITIONS, {"name": name}))
        await self.call(Opcode.DROP_FEED, {"feed_id": feed.feed_id.hex()})

    async def status(self) -> NodeStatus:
        """Asks the node for its status.

        Returns:
            The node's identity, health and counters.

        Raises:
            Retryable: No node has answered within ``retry_for`` seconds.
        """
        return node_status(await self.call(Opcode.STATUS, {}))

    # For feeds, writers and streams

    def level(self, text: str) -> Level:
        """A level by name; ValueError where there is none, NotDurable where this node cannot give it."""
        return self._session.level(text)

    def of_leader(self) -> Client:
        """Returns another client, not entered yet, that asks only the leader. This one may read from followers."""
        return Client(
            self._url,
            token=self._hello.token,
            name=self._hello.name,
            connect_timeout=self._connect_timeout_s,
            retry_for=self._retry_for_s,
            host=self.host,
        )

    def offers(self, level: Level) -> bool:
        """Tells whether the node that has answered last gives this level."""
        return self._session.offers(level)

    @property
    def reads_followers(self) -> bool:
        """What is read may be behind what was acknowledged."""
        return self._finder.state != "leader"

    @property
    def retry_for_s(self) -> float:
        """For how long a call tries what may succeed later."""
        return self._retry_for_s

    @property
    def peer_role(self) -> str:
        """What the node that has answered last is: "leader" or "follower"."""
        assert self._session.peer is not None, "the client is entered"
        return self._session.peer.role

    @property
    def cluster_id(self) -> bytes:
        """That of the node that has answered last (16 bytes)."""
        assert self._session.peer is not None, "the client is entered"
        return bytes.fromhex(self._session.peer.cluster_id)

    def kick(self) -> None:
        """Sends what is queued. Never waits."""
        self._link.kick()

    def queue_write(self, lane: Lane, block: Block, level: Level, done: Done) -> None:
        """Queues a block; ``kick`` sends it, and ``done`` is called with the answer."""
        self._session.write(lane, block, level, done, trio.current_time() + self._retry_for_s)

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        self._session.withdraw_lane(lane)

    def ask(self, request: StageRequest) -> None:
        """Queues a request of a stage; ``kick`` sends it."""
        self._session.ask(*request, trio.current_time() + self._retry_for_s)

    async def call(self, opcode: Opcode, value: dict[str, Any]) -> dict[str, Any]:
        """Sends a metadata request and returns its answer. Cancelling as of ``write``."""
        waiter: _Waiter[dict[str, Any]] = _Waiter()
        request = self._session.call(opcode, value, waiter.done, trio.current_time() + self._retry_for_s)
        return await self._wait(waiter, request)

    async def get(self, feed_id: bytes, level: Level, keys: list[bytes]) -> list[Item | None]:
        """Sends a look-up and returns its answer. Cancelling withdraws it."""
        waiter: _Waiter[list[Item | None]] = _Waiter()
        request = self._session.get(feed_id, level, keys, waiter.done, trio.current_time() + self._retry_for_s)
        return await self._wait(waiter, request)

    async def write(
        self, lane: Lane, block: Block, level: Level, flags: int, if_version: Version | None
    ) -> VersionRange:
        """Sends a block and returns its answer.

        If cancelled, a block that was not sent is never sent; one that was sent is not sent again.
        """
        waiter: _Waiter[VersionRange] = _Waiter()
        now = trio.current_time()
        request = self._session.write(lane, block, level, waiter.done, now + self._retry_for_s, flags, if_version)
        return await self._wait(waiter, request, now)

    async def write_all(self, blocks: list[tuple[Lane, Block]], level: Level) -> dict[int, VersionRange]:
        """Several blocks and their answers; the first error, with notes on who took his share. Cancelling as ``write``.

        Every block has its answer when this raises an error.
        """
        waiters: list[_Waiter[VersionRange]] = [_Waiter() for _ in blocks]
        deadline = trio.current_time() + self._retry_for_s
        requests = [
            self._session.write(lane, block, level, waiter.done, deadline)
            for (lane, block), waiter in zip(blocks, waiters, strict=True)
        ]
        error: TailraceError | None = None
        written: list[VersionRange] = []
        self.kick()
        try:
            for waiter in waiters:
                try:
                    written.append(await waiter.wait())
                except TailraceError as failure:
                    error = error or failure
        except BaseException:
            for request in requests:
                self._session.withdraw(request)
            raise
        if error is not None:
            taken = ", ".join(f"{r.partition} (seqs {r.first_seq} to {r.last_seq})" for r in written)
            error.add_note(f"of this batch, these partitions took their share: {taken or 'none'}")
            raise error
        return {versions.partition: versions for versions in written}

    async def _wait(self, waiter: _Waiter[_T], request: Request | WriteRequest, now: float | None = None) -> _T:
        self._link.kick(now)
        try:
            return await waiter.wait()
        except BaseException:
            self._session.withdraw(request)
            raise

    def stream(self, wanted: Wanted, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """A consumer, on a connection of its own. ValueError for a ``window_bytes`` below 1."""
        self.check_process()
        count("window_bytes", window_bytes, 1)
        finder = self._finder.another()
        return Stream(
            finder,
            self._hello._replace(window_bytes=window_bytes),
            wanted._replace(state=finder.state),
            host=self.host,
            connect_timeout_s=self._connect_timeout_s,
            retry_for_s=self._retry_for_s,
        )


def connect(
    url: str,
    *,
    token: str | None = None,
    name: str | None = None,
    connect_timeout: float = 10.0,
    retry_for: float = 30.0,
    state: str = "leader",
    host: Host | None = None,
) -> Client:
    """Makes a client of one node or of a set of nodes. Nothing is sent before the client is entered.

    Use it as an async context manager: ``async with tailrace.connect(url) as client``. Entering connects. Leaving
    closes the connection, and calls of other tasks that still wait raise `Unreachable`.

    Args:
        url: ``tailrace://HOST:PORT[,HOST:PORT...]``, with the name of the cluster behind a slash if it has one.
        token: The credential that is sent in the greeting. The server ignores it today.
        name: A name for this program, which the node's status shows.
        connect_timeout: The seconds that entering, and each later attempt to connect, may take.
        retry_for: The seconds for which a call retries a failure that may pass. Then it raises a `Retryable` error.
        state: The kind of node to use. "leader": the leader of the set, found from any node of the URL, and found again
            after a failover. "follower": a node of the URL that follows. Its data may be behind, and a write raises
            `NotLeader` after ``retry_for`` seconds. "any": the first node of the URL that answers.
        host: Clock, network and randomness for a simulator. Programs leave it out.

    Returns:
        A client, not connected yet. All tasks of one trio run may share it.

    Raises:
        ValueError: The URL, ``state`` or a number of seconds is not valid.
        Unreachable: On entering: no node could be used within ``connect_timeout`` seconds.
        Forbidden: On entering: the node refuses this client.
        ProtocolError: On entering: the other side does not speak Tailrace's protocol.
    """
    return Client(
        url,
        token=token,
        name=name,
        connect_timeout=connect_timeout,
        retry_for=retry_for,
        state=state,
        host=host,
    )
