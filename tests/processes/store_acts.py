"""Acts on the etcd that keeps the members of a set."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import trio

from .actor import Act, Actor, Report

if TYPE_CHECKING:
    import random

    from tests.tailrace_server.coordination.made_etcd import Etcd

    from .group import Group
    from .history import History


class StoreActs(Actor):
    """Kills etcd, pauses it, and takes all that it knew."""

    def __init__(self, group: Group, history: History, rnd: random.Random, etcd: Etcd) -> None:
        super().__init__(group, history, rnd)
        self._etcd = etcd
        self._trouble = ""

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [(1, self.kill_store), (1, self.pause_store), (1, self.lose_store)]

    async def mend(self) -> list[str]:
        if not self._trouble:
            return []
        if self._trouble == "killed":
            await trio.to_thread.run_sync(self._start)
        else:
            self._etcd.signal(signal.SIGCONT)
        self._trouble, self.group.is_storeless = "", False
        return ["etcd is there again"]

    def _start(self) -> None:
        self._etcd.start().wait()

    async def kill_store(self) -> Report | None:
        if self._trouble:
            return None
        await trio.to_thread.run_sync(self._etcd.stop)
        self._trouble, self.group.is_storeless = "killed", True
        return Report("SIGKILL for etcd")

    async def pause_store(self) -> Report | None:
        if self._trouble:
            return None
        await trio.to_thread.run_sync(self._etcd.signal, signal.SIGSTOP)
        self._trouble, self.group.is_storeless = "paused", True
        return Report("SIGSTOP for etcd")

    async def lose_store(self) -> Report | None:
        """Starts etcd on an empty directory."""
        if self._trouble:
            return None
        await trio.to_thread.run_sync(self._etcd.stop)
        shutil.rmtree(self._etcd.directory)
        await trio.to_thread.run_sync(self._start)
        return Report("etcd has lost everything")
