"""Lets a node's process kill or freeze itself at a point of a write, of staging or publishing, when a test orders it.

The order is a file with the name of the point. The node that comes to the point removes the file and dies before it
does anything else. So one node dies once, the leader. A frozen node goes on from there when it is thawed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tailrace_server.partition import published as appending
from tailrace_server.publishing.publisher import Publisher
from tailrace_server.publishing.stages import Stages
from tailrace_server.serving.answers import Answers, _Written


class Deaths:
    """Plants itself at the points."""

    def __init__(self, order):
        self._order = Path(order)
        self._take, Stages.take = Stages.take, self._with_self("take")
        self._begin_seal, Stages.begin_seal = Stages.begin_seal, self._with_self("begin_seal")
        self._publish, Publisher.publish = Publisher.publish, self._with_self("publish")
        self._write, Publisher._write = Publisher._write, self._with_self("write")
        self._settled, Publisher._settled = Publisher._settled, self._with_self("settled")
        self._share, appending.publish = appending.publish, self.share
        self._waited, Answers._waited = Answers._waited, self._with_self("waited")
        self._written, _Written.end = _Written.end, self._with_self("written")

    def _with_self(self, name):
        function = getattr(self, name)
        return lambda of, *arguments, **named: function(of, *arguments, **named)

    def _is_ordered(self, point):
        return self._order.exists() and self._order.read_text() == point

    def _die_at(self, point, how=signal.SIGKILL):
        if self._is_ordered(point):
            self._order.unlink()
            os.kill(os.getpid(), how)

    def take(self, stages, *arguments):
        """Dies when a block was staged and no client was told."""
        blocks = self._take(stages, *arguments)
        self._die_at("staged")
        return blocks

    def begin_seal(self, stages, *arguments):
        """Dies when all blocks were acknowledged."""
        self._die_at("before the seal")
        return self._begin_seal(stages, *arguments)

    async def publish(self, publisher, *arguments):
        """Dies when every stage is sealed."""
        self._die_at("before the publish")
        return await self._publish(publisher, *arguments)

    def share(self, *arguments, **named):
        """Dies or freezes when the first partition has its share, on this node alone."""
        versions = self._share(*arguments, **named)
        self._die_at("one partition")
        self._die_at("one partition, frozen", signal.SIGSTOP)
        return versions

    async def write(self, publisher, feed, request, shares, term, step):
        """Dies when the first partition has its share, on a majority of the nodes."""
        if self._is_ordered("one partition, at quorum"):
            first = min(shares)
            await self._write(publisher, feed, request, {first: shares[first]}, term, step)
            await self._settled(publisher, feed, step.seqs, term)
            self._die_at("one partition, at quorum")
        return await self._write(publisher, feed, request, shares, term, step)

    async def settled(self, *arguments):
        """Dies when a majority has the whole batch."""
        await self._settled(*arguments)
        self._die_at("before the answer")

    def waited(self, *arguments):
        """Dies when a majority has a write, or has confirmed the leader, and no client was told."""
        self._die_at("before a waited answer")
        return self._waited(*arguments)

    def written(self, *arguments):
        """Dies at the same point, before the answer to a WRITE."""
        self._die_at("before a waited answer")
        return self._written(*arguments)
