"""A node in a process of its own, as a test orders it: it may die at a call, and its log and answers are checked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tailrace import TailraceError
from tailrace.link.address import Address
from tailrace.testing.node import HOST, Node, NodeFailed
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode

from .forks import PROGRAM, ROOT, Fork
from .program import Orders

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HOST", "NodeFailed", "NodeProcess"]

# Far more seconds than an answer takes on a busy machine.
ASK_S = 60.0
# Texts in a node's log that tell of an error which no answer tells.
ALARMS = ("Traceback", "internal error", "Exception")


class NodeProcess(Node):
    """A `Node` over the directory ``data`` that runs with `Orders`.

    Nothing is started until `start` or `launch` is called.

    Args:
        data: The data directory.
        orders: How the process differs from the plain command.
        port: Its port; a free one by default.
        options: More options of ``tailrace serve``.
        log_path: The file that its log is appended to; the stderr of the tests by default.
        http: The address of its HTTP port; "off" by default.
    """

    def __init__(
        self,
        data: Path,
        orders: Orders | None = None,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        log_path: Path | None = None,
        log_level: str = "warning",
        http: str = "off",
    ) -> None:
        super().__init__(data, port=port, options=options, log_path=log_path, log_level=log_level, http=http)
        self.disk_trouble = ""
        self.orders = orders or Orders()
        self.member = self.address  # its name in a set: the address that it was made with

    def _fork(self, log: IO[bytes] | int) -> Fork:
        orders = {name: value for name, value in dataclasses.asdict(self.orders).items() if value}
        return Fork(PROGRAM, [json.dumps(orders), "serve", *self._arguments()], ROOT, log)

    # The disk. The orders have to name a ``disk_order``.

    def trouble_disk(self, trouble: str) -> None:
        """Lets the disk be in trouble (troubled_disk.py) until ``mend_disk``."""
        self.disk_trouble = trouble
        Path(self.orders.disk_order).write_text(trouble)

    def mend_disk(self) -> None:
        """Ends the disk's trouble. A node whose disk has failed has to be started again."""
        if self.disk_trouble:
            self.disk_trouble = ""
            Path(self.orders.disk_order).unlink()

    def died(self) -> bool:
        """Returns whether the process has died by SIGKILL, by itself; it is not running any more then."""
        if self._running().poll() is None:
            return False
        self._require(self.wait(), -signal.SIGKILL)
        return True

    # Answers and logs

    async def ask(self, opcode: Opcode = Opcode.MEMBER, **value: Any) -> dict[str, Any] | None:
        """Returns the node's answer to a request between nodes; None if it does not answer, or refuses."""
        with contextlib.suppress(TailraceError):
            return await request.ask(Address(HOST, self.port), opcode, value, timeout_s=ASK_S)
        return None

    def check_log(self) -> None:
        """Raises NodeFailed if the node has logged an error that it did not expect."""
        assert self.log_path is not None
        text = self.log_path.read_text()
        found = [alarm for alarm in ALARMS if alarm in text]
        if found:
            at = text.index(found[0])
            raise NodeFailed(f"{self.name} has logged an error:\n{text[max(at - 1_000, 0) : at + 4_000]}")
