"""A node in a process of its own that dies at a chosen call of its disk, forgets what was not synced, or has a bug.

    python node_process.py '{"dies_at": 17, "how": "torn"}' serve --data DIR --listen 127.0.0.1:4700 ...

It is the command ``tailrace`` but for what the first argument, a JSON object of ``Orders``, says; and it ends when its
stdin does, so that none is left where the tests' own process is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from tailrace import cli
from tailrace.model import Level
from tailrace_server.config import Config, StorageConfig
from tailrace_server.host.disk import RealDisk, RealFile
from tailrace_server.journal import Record, RecordKind, Recovered
from tailrace_server.node import command, node, start
from tailrace_server.partition import writing
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.state.producers import ProducerTable, ResendDecision, ResendVerdict
from tailrace_server.stream.barriers import WaitingBarriers
from tailrace_server.upkeep.committer import Committer


class Orders(NamedTuple):
    """``dies_at``: the call that changes the disk, counted from the start, at which the process gets a SIGKILL;
    ``dies_at_stop``: likewise, counted from the moment that a clean stop has begun. ``calls``: only those of this name
    count. ``how``: "before" the call, "after" it, or with a write "torn" in the middle. ``may_hang``: from a SIGUSR1 on
    no fsync comes back. ``forgets``: what was not synced dies with the process. ``file_bytes_max``: of the journal.
    ``bug``: one of ``BUGS``.
    """

    dies_at: int = 0
    dies_at_stop: int = 0
    calls: str = ""
    how: str = "before"
    may_hang: bool = False
    forgets: bool = False
    file_bytes_max: int = 0
    bug: str = ""


class Death:
    """Counts the calls of a disk, and ends the process at one of them."""

    def __init__(self, orders: Orders) -> None:
        self._how = orders.how
        self._calls = orders.calls
        self._calls_left = orders.dies_at
        self.forget = None  # called right before the end
        self.hangs = False
        self._lock = threading.Lock()

    def hang(self, *_) -> None:
        """No fsync comes back from now on."""
        self.hangs = True

    def count_anew(self, calls: int) -> None:
        with self._lock:
            self._calls_left = calls

    @contextlib.contextmanager
    def at_a_call(self, name, torn=None):
        """Around each call; ``torn`` makes half of it."""
        with self._lock:
            counts = self._calls in ("", name)
            self._calls_left -= counts
            now = counts and self._calls_left == 0
        if now and self._how != "after":
            if self._how == "torn" and torn is not None:
                torn()
            self._die()
        yield
        if now:
            self._die()

    def _die(self) -> None:
        if self.forget is not None:
            self.forget()
        os.kill(os.getpid(), signal.SIGKILL)


class MortalDirectory:
    """An open directory of a `MortalDisk`."""

    def __init__(self, disk, directory):
        self._disk = disk
        self._directory = directory
        self.close = directory.close

    def sync(self):
        with self._disk.death.at_a_call("sync_directory"):
            self._directory.sync()


class MortalDisk(RealDisk):
    """A real disk; ``forgets``: the files keep in this process what was not synced, as the machine keeps it in memory.

    When the process ends at a call any part of that has reached the files, as at a power cut; when it is killed from
    outside, nothing. Names are durable at once.
    """

    def __init__(self, death: Death, *, forgets: bool) -> None:
        self.death = death
        self.forgets = forgets
        self.files: list[MortalFile] = []
        death.forget = self._cut_power

    def _cut_power(self) -> None:
        rnd = random.Random(os.getpid())
        for file in self.files:
            file.lose_some(rnd)

    def _wrap(self, file: RealFile) -> MortalFile:
        mortal = MortalFile(self, file)
        self.files.append(mortal)
        return mortal

    def make_directory(self, path):
        with self.death.at_a_call("make_directory"):
            super().make_directory(path)

    def create(self, path):
        with self.death.at_a_call("create"):
            return self._wrap(super().create(path))

    def open(self, path, *, writable=False):
        return self._wrap(super().open(path, writable=writable))

    def rename(self, source, target):
        with self.death.at_a_call("rename"):
            super().rename(source, target)

    def remove(self, path):
        with self.death.at_a_call("remove"):
            super().remove(path)

    def sync_directory(self, path):
        with self.death.at_a_call("sync_directory"):
            super().sync_directory(path)

    def open_directory(self, path):
        return MortalDirectory(self, super().open_directory(path))


class MortalFile:
    """A file of a ``MortalDisk``. ``_unsynced``: (offset, data) of writes, (size, None) of truncations, in order."""

    def __init__(self, disk: MortalDisk, file: RealFile) -> None:
        self._disk = disk
        self._file = file
        self._lock = threading.Lock()
        self._unsynced: list[tuple[int, bytes | None]] = []

    def _apply(self, offset: int, data: bytes | None) -> None:
        if data is None:
            self._file.truncate(offset)
        else:
            self._file.write_at(offset, (data,), len(data))

    def _change(self, offset: int, data: bytes | None) -> None:
        with self._lock:
            if self._disk.forgets:
                self._unsynced.append((offset, data))
            else:
                self._apply(offset, data)

    def lose_some(self, rnd: random.Random) -> None:
        for offset, data in self._unsynced:
            if rnd.random() < 0.5:
                self._apply(offset, data if data is None else data[: rnd.randint(0, len(data))])

    def write_at(self, offset, buffers, nbytes):
        data = b"".join(buffers)
        assert len(data) == nbytes
        with self._disk.death.at_a_call("write_at", lambda: self._change(offset, data[: nbytes // 2])):
            self._change(offset, data)

    def truncate(self, size):
        with self._disk.death.at_a_call("truncate"):
            self._change(size, None)

    def allocate(self, offset, nbytes):
        with self._disk.death.at_a_call("allocate"):
            return self._file.allocate(offset, nbytes)

    def sync(self):
        with self._disk.death.at_a_call("sync"):
            if self._disk.death.hangs:
                threading.Event().wait()
            with self._lock:
                unsynced, self._unsynced = self._unsynced, []
                for offset, data in unsynced:
                    self._apply(offset, data)
            self._file.sync()

    def read_at(self, offset, nbytes):
        with self._lock:
            assert not self._unsynced, "nothing reads what it has just written"
        return self._file.read_at(offset, nbytes)

    def read_cached(self, offset, nbytes):
        with self._lock:
            assert not self._unsynced, "nothing reads what it has just written"
        return self._file.read_cached(offset, nbytes)

    def size(self):
        with self._lock:
            assert not self._unsynced, "nothing measures what it has just written"
        return self._file.size()

    def identity(self):
        return self._file.identity()

    def close(self):
        # What is not synced is as if the machine's cache had it: it survives the file, and not the machine.
        if not self._unsynced:
            self._file.close()


# Bugs, to see that the model finds them.


def resends_not_recognised() -> None:
    ProducerTable.decide = lambda self, producer_id, number, *, resend, now: ResendDecision(ResendVerdict.ACCEPT)


def barrier_at_once() -> None:
    add = WaitingBarriers.add
    WaitingBarriers.add = lambda self, cookie, streams, **held: add(self, cookie, (), **held)


def send_before_fsync() -> None:
    turn_ended = node.Node.turn_ended

    def hurried(self, asker=None):
        self.flush()
        turn_ended(self, asker)

    node.Node.turn_ended = hurried
    Committer._is_cheap = lambda self: False  # on the loop an fsync would keep from sending what it is late for


def acknowledged_before_fsync() -> None:
    send_before_fsync()
    Committer.when_durable = lambda self, callback: (self.hurry(), callback(None))


def shown_before_fsync() -> None:
    send_before_fsync()
    watch, unwatch = Partition.watch, Partition.unwatch
    Partition.visible_seq = lambda self, level: self.high_seq
    Partition.watch = lambda self, level, notify: watch(self, Level.MEMORY, notify)
    Partition.unwatch = lambda self, level, notify: unwatch(self, Level.MEMORY, notify)


def no_new_branch() -> None:
    start.why_unclean = lambda taken, journal_end, partitions: None


class _OneAtATime(list[Record]):
    """Records that are not read by columns."""

    def parts(self) -> Iterator[Record]:
        return iter(self)

    def of_kind(self, kind: RecordKind) -> Iterator[Record]:
        return (record for record in self if record.kind is kind)


def last_block_forgotten() -> None:
    open_journal = start.open_journal

    def forgetful(*args, **kwargs):
        journal, recovered = open_journal(*args, **kwargs)
        records = _OneAtATime(recovered.records)
        blocks = [index for index, record in enumerate(records) if record.kind is RecordKind.BLOCK]
        if blocks:
            del records[blocks[-1]]
        return journal, Recovered(**{**recovered._asdict(), "records": records})

    start.open_journal = forgetful


def conditions_not_checked() -> None:
    assert hasattr(writing, "holds")
    writing.holds = lambda *args: True


BUGS = {
    bug.__name__: bug
    for bug in (
        resends_not_recognised,
        barrier_at_once,
        acknowledged_before_fsync,
        shown_before_fsync,
        no_new_branch,
        last_block_forgotten,
        conditions_not_checked,
    )
}


def end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(1)


def main(orders: Orders, arguments: list[str]) -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    if orders != Orders():
        command.open_node = partial(open_mortal, orders)
    if orders.bug:
        BUGS[orders.bug]()
    sys.argv = ["tailrace", *arguments]
    cli.main()


@contextlib.asynccontextmanager
async def open_mortal(orders: Orders, config: Config):
    death = Death(orders)
    if orders.may_hang:
        signal.signal(signal.SIGUSR1, death.hang)
    if orders.file_bytes_max:
        # Small enough that write queues are flushed, and their segments folded, in the middle of everything.
        storage = StorageConfig(
            segment_bytes=16 * 1024,
            flush_age_s=1.0,
            journal_file_bytes_max=orders.file_bytes_max,
            reserve_bytes=256 * 1024,
        )
        config = dataclasses.replace(config, storage=storage)
    async with start.open_node(config, Host(disk=MortalDisk(death, forgets=orders.forgets))) as opened:
        yield opened
        if orders.dies_at_stop:
            death.count_anew(orders.dies_at_stop)


if __name__ == "__main__":
    main(Orders(**json.loads(sys.argv[1])), sys.argv[2:])
