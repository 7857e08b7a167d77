"""Tells 'no such feed' from 'not replicated here yet'. Only the current leader can answer.

    a leader     has asked a majority whether it still leads
    a follower   has asked its leader how far ``_feeds`` has come, and has taken over all of that

Until then the feed may be new, and the client has to ask again, here or elsewhere. A connection has one question under
way; requests that come meanwhile share the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import NotLeader, Overloaded, TailraceError
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.host.answers import Answer
    from tailrace_server.serving.services import OpenConnection


class MissingFeeds:
    """Confirms for one connection that this node knows of all feeds."""

    def __init__(self, connection: OpenConnection) -> None:
        self._connection = connection
        self._waiting: list[tuple[int, Answer]] = []
        self._under_way = False

    def confirm(self, answer: Answer) -> None:
        """Calls ``answer(None)`` once it is sure that the missing feed does not exist, otherwise ``answer(error)``.

        It is called at once on a node without a set, otherwise later; never if the connection ends first. Raises
        Overloaded if too many requests wait.
        """
        connection = self._connection
        node, leadership = connection.node, connection.node.leaderships.system
        if leadership.role is Role.LEADER and not leadership.in_set:
            answer(None)
            return
        connection.waiting.begin()
        self._waiting.append((node.feeds.additions, answer))
        if not self._under_way:
            self._under_way = True
            connection.nursery.start_soon(self._run)

    async def _run(self) -> None:
        connection = self._connection
        node, leadership = connection.node, connection.node.leaderships.system
        while self._waiting:
            asked, self._waiting = self._waiting, []
            failure: TailraceError | None = None
            try:
                await node.feed_changes.confirm_known()
            except TailraceError as error:
                failure = error
            except OSError as error:
                failure = NotLeader(f"the leader cannot be asked: {error}", leader=leadership.leader_address or None)
            for additions, answer in asked:
                connection.waiting.end()
                if failure is None and additions != node.feeds.additions:
                    answer(Overloaded("a feed was added while this node asked: ask again"))
                else:
                    answer(failure)
            node.connections.turn_ended()
        self._under_way = False
