"""Node processes over one data directory, one after the other, each with its end: SIGKILL, SIGTERM, or both."""

from __future__ import annotations

import enum
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio
from tests.processes.ports import free_port
from tests.processes.violation import Violation

import tailrace

from .node_process import Orders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.processes.history import History

FEED = "model"
SCRIPT = Path(__file__).with_name("node_process.py")
# Calls that change the disk: the fewest in a start over a directory with a feed, and those in a clean stop.
CALLS_IN_A_START = 20
CALLS_IN_A_STOP = 7
# What a look at a log of a node says where something went wrong in it that no answer tells.
ALARMS = (b"Traceback", b"internal error", b"Exception")


class End(enum.Enum):
    KILL = "SIGKILL from outside, after some answers"
    KILL_SETTLED = "SIGKILL from outside, when every write has been answered, and the last one at level disk"
    KILL_HANGING = "SIGKILL from outside, when no fsync has come back for a while"
    STOP = "SIGTERM, after some answers"
    DIE = "SIGKILL at a call of the disk"
    DIE_STOPPING = "SIGTERM, and SIGKILL at a call of the disk after it"


class Life(NamedTuple):
    """What becomes of a process: ``answers`` are those that are waited for before the signal is sent."""

    end: End
    answers: int = 0
    orders: Orders = Orders()


class Mark(enum.Enum):
    """What the data directory says of the last stop."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    EITHER = "either: nobody saw whether the last process came to that"


def random_life(rnd: random.Random) -> Life:
    """How a process lives and ends."""
    how = rnd.choice(["before", "torn", "after"])
    answers = rnd.randrange(1, 800)
    number = rnd.random()
    if number < 0.50:
        return Life(End.KILL, answers)
    if number < 0.75:
        return Life(End.DIE, orders=Orders(dies_at=rnd.randrange(CALLS_IN_A_START, 1_500), how=how))
    if number < 0.90:
        return Life(End.STOP, answers)
    return Life(End.DIE_STOPPING, answers, Orders(dies_at_stop=rnd.randrange(1, CALLS_IN_A_STOP + 1), how=how))


def short_life(rnd: random.Random) -> Life:
    """How a process ends before it is ready."""
    how = rnd.choice(["before", "torn", "after"])
    return Life(End.DIE, orders=Orders(dies_at=rnd.randrange(1, CALLS_IN_A_START), how=how))


class Nodes:
    """Starts one process after the other, and compares what each says of the last stop with what that really was.

    ``bug`` and ``forgets`` are orders for all of them.
    """

    def __init__(self, directory: Path, history: History, *, bug: str = "", forgets: bool = False) -> None:
        self.data = directory / "data"
        self.log_path = directory / "node.log"
        self.port = free_port()
        self.url = f"tailrace://127.0.0.1:{self.port}"
        self.kills = self.kills_in_recovery = self.stops = self.starts = 0
        self._history = history
        self._bug = bug
        self._forgets = forgets
        self._mark = Mark.CLEAN  # of an empty directory
        self._risen_min = self._risen_max = 0  # terms: by processes that ended before they were looked at
        self._looked_at = False
        self._process: trio.Process | None = None
        self.has_feed = False
        self._killed = trio.Event()

    @property
    def ends(self) -> int:
        """How many processes have come to their end."""
        return self.kills + self.stops

    async def killed(self) -> None:
        """Waits for the next SIGKILL."""
        await self._killed.wait()

    async def live(self, life: Life, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """One process, from its start to its end. ``until``: the signal is sent when it returns."""
        process = self._process = await self._start(life.orders)
        ready = asked_to_stop = self._looked_at = False
        try:
            ready = await _is_ready(process)
            if ready:
                self.starts += 1
                asked_to_stop = await self._use(process, life, until)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            assert process.stdio is not None
            await process.stdio.aclose()
        self._ended(life, code, ready=ready, asked_to_stop=asked_to_stop)

    def hang(self) -> None:
        """From now on no fsync of the process comes back. Its orders have to say that this may be."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    async def _start(self, orders: Orders) -> trio.Process:
        # Who is cancelled between the process's start and the end of this would leave it running, known to nobody.
        with trio.CancelScope(shield=True):
            async with await trio.open_file(self.log_path, "ab") as log:
                return await trio.lowlevel.open_process(
                    self._command(orders), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.fileno()
                )

    def _command(self, orders: Orders) -> list[str]:
        arguments = ["serve", "--data", str(self.data), "--listen", f"127.0.0.1:{self.port}"]
        arguments += ["--http", "off", "--ws", "off", "--log-level", "warning"]
        orders = orders._replace(bug=self._bug, forgets=self._forgets)
        if orders != Orders():
            # Journal files that small are finished and begun all the time.
            orders = orders._replace(file_bytes_max=256 * 1024)
        return [sys.executable, str(SCRIPT), json.dumps(orders._asdict()), *arguments]

    async def _use(self, process: trio.Process, life: Life, until: Callable[[], Awaitable[None]] | None) -> bool:
        """Whether a stop was asked for before the process ended."""
        asked = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await process.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self._look_at_logs()
            if until is not None:
                await until()
            elif life.end is End.DIE:
                await trio.sleep_forever()
            else:
                await self._history.more_answers(life.answers)
            if life.end in (End.KILL, End.KILL_SETTLED, End.KILL_HANGING):
                process.kill()
            else:
                asked = True
                process.terminate()
            await process.wait()
        return asked

    async def _look_at_logs(self) -> None:
        """The failover logs of this start are what they have to be after the last end."""
        async with tailrace.connect(self.url, name="supervisor", retry_for=60) as client:
            unclean = (await client.status()).details["unclean_start"]
            if self._mark is not Mark.EITHER and (unclean is None) != (self._mark is Mark.CLEAN):
                raise Violation(f"the last stop was {self._mark.value}, and the node says: {unclean}")
            if not self.has_feed:
                return
            async with client.feed(FEED).consume("now") as stream:
                positions = stream.positions
        risen = int(unclean is not None)
        for partition, branches in self._history.branches.items():
            made = not branches.log  # since the last look, with term 1
            least = 1 if made else self._risen_min + risen
            what = f"partition {partition}, start {self.starts}"
            branches.started(positions[partition].log, least, made + self._risen_max + risen, what)
        self._risen_min = self._risen_max = 0
        self._looked_at = True

    def _ended(self, life: Life, code: int, *, ready: bool, asked_to_stop: bool) -> None:
        died = code == -signal.SIGKILL
        if not (died or (code == 0 and asked_to_stop)):
            raise Violation(f"a node ended with {code} ({life}); the end of its log:\n{self.log_tail()}")
        if not self._looked_at and self._mark is not Mark.CLEAN:
            self._risen_max += 1
            self._risen_min += ready and self._mark is Mark.UNCLEAN
        if not died:
            self.stops += 1
            self._mark = Mark.CLEAN
            return
        self.kills += 1
        self.kills_in_recovery += not ready
        if asked_to_stop or (not ready and self._mark is not Mark.UNCLEAN):
            self._mark = Mark.EITHER
        else:
            self._mark = Mark.UNCLEAN
        self._killed.set()
        self._killed = trio.Event()

    def log_tail(self) -> str:
        """The last lines that the nodes have logged."""
        return "\n".join(self.log_path.read_text().splitlines()[-30:]) if self.log_path.exists() else ""

    def check_log(self) -> None:
        """No node has met an error that it did not expect."""
        if any(alarm in self.log_path.read_bytes() for alarm in ALARMS):
            raise Violation(f"the nodes have logged errors:\n{self.log_tail()}")


async def _is_ready(process: trio.Process) -> bool:
    """Whether the process says that it is ready; False where it ends before."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        data = await process.stdout.receive_some()
        if not data:
            return False
        line += data
    if not line.startswith(b"tailrace: ready"):
        raise Violation(f"a node says {line!r}")
    return True
