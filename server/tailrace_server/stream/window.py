"""The window of a connection: how many bytes of blocks its consumer has room for, and counts of all sent ones. Pure."""

from __future__ import annotations

from tailrace.block import Block
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.unhandled import UnhandledBlocks


class Window:
    """Counts the bytes of blocks that were sent and not yet granted again. Only its own methods change its fields.

    Attributes:
        nbytes: The bound of these bytes. The last block may go beyond it.
        free_bytes: What is left of it. No block may be sent without any, before the consumer grants more.
        credited_bytes: All bytes that were ever granted again.
        sent_blocks: All blocks that were ever sent.
        sent_bytes: Their bytes.
        unhandled: The blocks of consumers that were not granted again.
    """

    __slots__ = ("credited_bytes", "free_bytes", "nbytes", "sent_blocks", "sent_bytes", "unhandled")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.free_bytes = nbytes
        self.credited_bytes = self.sent_blocks = self.sent_bytes = 0
        self.unhandled = UnhandledBlocks()

    @property
    def outstanding_bytes(self) -> int:
        """The bytes that were sent and not yet granted again."""
        return self.nbytes - self.free_bytes

    @property
    def is_full(self) -> bool:
        """No block may be sent before the consumer grants more."""
        return self.free_bytes <= 0

    def resize(self, nbytes: int) -> None:
        """Makes the window larger or smaller. What was sent stays sent."""
        self.free_bytes += nbytes - self.nbytes
        self.nbytes = nbytes

    def credited(self, nbytes: int) -> None:
        """Takes back ``nbytes``, which the consumer has consumed. More than was sent is ignored."""
        self.credited_bytes += nbytes
        self.free_bytes = min(self.free_bytes + nbytes, self.nbytes)
        self.unhandled.credited(nbytes)

    def sent(self, stream: PartitionStream, block: Block, size: int) -> None:
        """Counts a block of ``size`` bytes that is sent now."""
        self.free_bytes -= size
        if stream.notes_unhandled:
            self.unhandled.sent(stream.partition, block)
        self.sent_blocks += 1
        self.sent_bytes += size

    def sent_few(self, blocks: int, size: int) -> None:
        """Counts so many blocks of ``size`` bytes together, of a stream that notes none as unhandled."""
        self.free_bytes -= size
        self.sent_blocks += blocks
        self.sent_bytes += size
