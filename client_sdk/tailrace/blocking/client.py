"""``tailrace.blocking.connect``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from tailrace.block import Block
from tailrace.blocking.feed import Feed
from tailrace.blocking.guard import Guard
from tailrace.blocking.link import BlockingLink
from tailrace.blocking.stream import Stream
from tailrace.consuming.wanted import Wanted
from tailrace.errors import TailraceError, Unreachable
from tailrace.link.address import parse_url
from tailrace.link.finder import Finder, check_state
from tailrace.model import FeedInfo, Item, Level, NodeStatus, Version, VersionRange
from tailrace.model.arguments import count, seconds
from tailrace.requests.changes import creation_request
from tailrace.requests.lane import Done, Lane, Lanes, WriteRequest
from tailrace.requests.replies import feed_infos, node_status, resolved
from tailrace.requests.session import Request, RequestSession
from tailrace.requests.staging import StageRequest
from tailrace.trio.host import new_session
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")


class Reply(Generic[_T]):
    """The answer to a request, once there is one."""

    def __init__(self) -> None:
        self.finished = False
        self.result: _T | None = None
        self.error: TailraceError | None = None

    def done(self, result: _T | None, error: TailraceError | None) -> None:
        """Called by the session."""
        self.finished, self.result, self.error = True, result, error


class Client:
    """A connection to the leader, or to another node, that the client restores when it breaks. Made by `connect`.

    Threads may share a client and its feeds. Their calls run together on one connection, and each call has its own
    time-out.

    If an exception such as KeyboardInterrupt ends a call, a request that was not
    sent yet is never sent. A request that was sent may still be carried out, and is not sent again after a lost
    connection. If the exception interrupts the client while it does not wait, later calls raise `TailraceError`:
    connect again.

    In a forked process every call raises `WrongProcess`, also the calls of the client's feeds, writers, stages and
    streams. ``close`` there does not touch the connection of the parent.
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
    ) -> None:
        addresses, cluster = parse_url(url)
        check_state(state)
        connect_timeout, retry_for = seconds("connect_timeout", connect_timeout), seconds("retry_for", retry_for)
        self._finder = finder = Finder(addresses, state, time.monotonic, cluster=cluster)
        self._connect_timeout_s = connect_timeout
        self._retry_for_s = retry_for
        self._where = ", ".join(map(str, addresses))
        self._url = url
        self._hello = Hello(name=name or "", token=token)
        self._session = RequestSession(
            self._hello, time.monotonic, state=state, check=finder.check, session=new_session()
        )
        self._link = BlockingLink(self._session, finder, connect_timeout)
        self.lanes = Lanes()
        self._closed = False

    def __enter__(self) -> Client:
        """Connects. Raises Unreachable where no node has answered within ``connect_timeout`` seconds, or Forbidden."""
        deadline = time.monotonic() + self._connect_timeout_s
        try:
            if not self.run_until(lambda: self._session.is_open, deadline):
                reason = self._session.last_error or "no answer"
                waited = f"within {self._connect_timeout_s:g} s"
                raise Unreachable(f"no node at {self._where} could be used {waited}: {reason}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Requests without an answer fail with `Unreachable`, and so does every later call.

        Any thread may call it, also while other threads wait.
        """
        self._closed = True
        with self.guard.lock:
            self._link.close()
            if not self._link.guard.is_broken:
                self._session.fail_all(Unreachable("the client was closed", outcome="unknown"))

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
        exist_ok: bool = True,
        timeout: float | None = None,
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
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            A handle of the feed.

        Raises:
            FeedExists: The feed exists and a given setting differs from its own.
            TailraceError: A setting is outside its bounds, or the node has as many feeds as it can hold.
            Retryable: No node could create it in time.
        """
        value = creation_request(
            name,
            secrets.token_bytes(16),
            exist_ok,
            partitions=partitions,
            keyspace=keyspace,
            retention=retention,
            history_age_s=history_age_s,
            history_bytes=history_bytes,
            tombstone_age_s=tombstone_age_s,
            replication=replication,
        )
        self.call(Opcode.CREATE_FEED, value, self.deadline(timeout))
        return Feed(self, name)

    def feed(self, name: str) -> Feed:
        """Returns a handle of a feed without asking the node.

        Args:
            name: The name of the feed. If it does not exist, the first call of the handle raises `UnknownFeed`.

        Returns:
            A handle.
        """
        return Feed(self, name)

    def feeds(self, *, timeout: float | None = None) -> list[FeedInfo]:
        """Lists the feeds of the node.

        Args:
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            A description of each feed, in the order of the names.

        Raises:
            Retryable: No node has answered in time.
        """
        value = self.call(Opcode.LIST_FEEDS, {}, self.deadline(timeout))
        return feed_infos(value)

    def drop_feed(self, name: str, *, timeout: float | None = None) -> None:
        """Drops a feed with all its data. Streams of the feed end with the reason "feed_dropped".

        Args:
            name: The name of the feed.
            timeout: The seconds to retry, in place of ``retry_for``.

        Raises:
            UnknownFeed: There is no feed of this name.
            Retryable: No node could drop it in time.
        """
        deadline = self.deadline(timeout)
        feed = resolved(self.call(Opcode.PARTITIONS, {"name": name}, deadline))
        self.call(Opcode.DROP_FEED, {"feed_id": feed.feed_id.hex()}, deadline)

    def status(self, *, timeout: float | None = None) -> NodeStatus:
        """Asks the node for its status.

        Args:
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The node's identity, health and counters.

        Raises:
            Retryable: No node has answered in time.
        """
        return node_status(self.call(Opcode.STATUS, {}, self.deadline(timeout)))

    @property
    def cluster_id(self) -> bytes:
        """The id of the cluster that the node belongs to, 16 bytes. It raises `Unreachable` before the client has
        connected.
        """
        if self._session.peer is None:
            raise Unreachable("the client has not connected yet")
        return bytes.fromhex(self._session.peer.cluster_id)

    # For feeds, writers and readers

    def stream(self, wanted: Wanted, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """A consumer, on a connection of its own. ValueError for a ``window_bytes`` below 1."""
        count("window_bytes", window_bytes, 1)
        finder = self._finder.another()
        return Stream(
            finder,
            self._hello._replace(window_bytes=window_bytes),
            wanted._replace(state=finder.state),
            connect_timeout_s=self._connect_timeout_s,
            retry_for_s=self._retry_for_s,
        )

    @property
    def guard(self) -> Guard:
        """Its lock is held around what threads share."""
        return self._link.guard

    def of_leader(self, deadline: float) -> Client:
        """Returns another client, not entered yet, that asks only the leader. This one may read from followers."""
        return Client(
            self._url,
            token=self._hello.token,
            name=self._hello.name,
            connect_timeout=min(self._connect_timeout_s, max(deadline - time.monotonic(), 0.0)),
            retry_for=self._retry_for_s,
            state="leader",
        )

    def offers(self, level: Level) -> bool:
        """Tells whether the node that has answered last gives this level."""
        return self._session.offers(level)

    @property
    def reads_followers(self) -> bool:
        """What is read may be behind what was acknowledged."""
        return self._finder.state != "leader"

    def level(self, text: str) -> Level:
        """A level by name; ValueError where there is none, NotDurable where this node cannot give it."""
        return self._session.level(text)

    def deadline(self, timeout: float | None) -> float:
        """Returns when a request of now is given up (monotonic seconds): after ``timeout``, or ``retry_for`` seconds.

        Raises ValueError or TypeError if ``timeout`` is no number of seconds.
        """
        return time.monotonic() + (self._retry_for_s if timeout is None else seconds("timeout", timeout))

    def run_until(self, done: Callable[[], bool], deadline: float | None = None) -> bool:
        """Moves bytes until ``done()``; False where ``deadline`` (monotonic seconds) came first."""
        self._check_open()
        return self._link.run_until(done, deadline)

    def call(self, opcode: Opcode, value: dict[str, Any], deadline: float) -> dict[str, Any]:
        """A metadata request and its answer."""
        self._check_open()
        reply: Reply[dict[str, Any]] = Reply()
        return self._wait(reply, self._change(self._session.call, opcode, value, reply.done, deadline))

    def get(self, feed_id: bytes, level: Level, keys: list[bytes], deadline: float) -> list[Item | None]:
        """A look-up and its answer."""
        self._check_open()
        reply: Reply[list[Item | None]] = Reply()
        return self._wait(reply, self._change(self._session.get, feed_id, level, keys, reply.done, deadline))

    def write(
        self,
        lane: Lane,
        block: Block,
        level: Level,
        deadline: float,
        *,
        flags: int = 0,
        if_version: Version | None = None,
    ) -> VersionRange:
        """A block and its answer."""
        self._check_open()
        reply: Reply[VersionRange] = Reply()
        write = self._session.write
        return self._wait(reply, self._change(write, lane, block, level, reply.done, deadline, flags, if_version))

    def write_all(self, blocks: list[tuple[Lane, Block]], level: Level, deadline: float) -> dict[int, VersionRange]:
        """Several blocks and their answers; the first error, with notes on who took his share."""
        self._check_open()
        replies: list[Reply[VersionRange]] = [Reply() for _ in blocks]
        requests = [
            self._change(self._session.write, lane, block, level, reply.done, deadline)
            for (lane, block), reply in zip(blocks, replies, strict=True)
        ]
        self._run(lambda: all(reply.finished for reply in replies), requests)
        written = [reply.result for reply in replies if reply.result is not None]
        for reply in replies:
            if reply.error is not None:
                taken = ", ".join(f"{r.partition} (seqs {r.first_seq} to {r.last_seq})" for r in written)
                reply.error.add_note(f"of this batch, these partitions took their share: {taken or 'none'}")
                raise reply.error
        return {versions.partition: versions for versions in written}

    def queue_write(self, lane: Lane, block: Block, level: Level, done: Done, deadline: float) -> None:
        """Queues a block; ``push`` sends it."""
        self._check_open()
        self._change(self._session.write, lane, block, level, done, deadline)

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        with self.guard.lock:
            if not self._link.guard.is_broken:
                self._change(self._session.withdraw_lane, lane)

    def queue(self, request: StageRequest, deadline: float) -> None:
        """Queues a request of a stage; ``push`` sends it."""
        self._check_open()
        self._change(self._session.ask, *request, deadline)

    def push(self) -> None:
        """Sends of what is queued as much as goes without waiting."""
        self._link.push()

    def _wait(self, reply: Reply[_T], request: Request | WriteRequest) -> _T:
        self._run(lambda: reply.finished, [request])
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result

    def _run(self, done: Callable[[], bool], requests: Sequence[Request | WriteRequest]) -> None:
        """Moves bytes until ``done()``. An exception (Ctrl-C) withdraws the requests: later calls do not send them."""
        try:
            self._link.run_until(done, None)
        except BaseException:
            with self.guard.lock:
                if not self._link.guard.is_broken:
                    for request in requests:
                        self._change(self._session.withdraw, request)
            raise

    def _change(self, change: Callable[_P, _R], *arguments: _P.args, **options: _P.kwargs) -> _R:
        """Calls a method of the session. If it is interrupted, every later call raises TailraceError."""
        guard = self._link.guard
        with guard.lock:
            guard.check()
            guard.begin()
            result = change(*arguments, **options)
            guard.end()
        return result

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable("the client was closed: connect again")
        # A program may take as long as it likes between two calls, and a task of Spark does: nothing is sent, and no
        # answer taken, meanwhile.
        paused_s = self._link.take_pause()
        if paused_s:
            self._change(self._session.postpone, paused_s)


def connect(
    url: str,
    *,
    token: str | None = None,
    name: str | None = None,
    connect_timeout: float = 10.0,
    retry_for: float = 30.0,
    state: str = "leader",
) -> Client:
    """Makes a client for programs without async. Use it as a context manager; entering connects.

    Nothing is sent or received between two calls. Pauses of a second or more do not count towards ``retry_for``.

    Args:
        url: ``tailrace://HOST:PORT[,HOST:PORT...]``, with the name of the cluster behind a slash if it has one.
        token: The credential that is sent in the greeting. The server ignores it today.
        name: A name for this program, which the node's status shows.
        connect_timeout: The seconds that entering, and each later attempt to connect, may take.
        retry_for: The seconds for which a call retries a failure that may pass. Then it raises a `Retryable` error.
        state: The kind of node to use: "leader", "follower" or "any", as in `tailrace.connect`.

    Returns:
        A client, not connected yet. Threads may share it.

    Raises:
        ValueError: The URL, ``state`` or a number of seconds is not valid.
        Unreachable: On entering: no node could be used within ``connect_timeout`` seconds.
        Forbidden: On entering: the node refuses this client.
    """
    return Client(url, token=token, name=name, connect_timeout=connect_timeout, retry_for=retry_for, state=state)
