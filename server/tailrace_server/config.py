"""What an operator can set, and the bounds that hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.wire.frames import FRAME_BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a peer can make the node hold or do. Each has its reason beside it."""

    # A block of the largest size with a WRITE's fixed part around it.
    frame_body_bytes_max: int = FRAME_BODY_BYTES_MAX
    # Descriptors and about 20 KiB each; more is a runaway client.
    connections_max: int = 4_096
    # A peer that sends requests and reads no answers: past this its requests wait.
    backlog_bytes_max: int = 8 * 1024 * 1024
    # The most that a consumer may ask to have under way, whatever it says in its HELLO.
    window_bytes_max: int = 64 * 1024 * 1024
    # Of one connection: 16 feeds of 1,024 partitions, and a barrier for each query of a busy index.
    streams_max: int = 16_384
    barriers_max: int = 4_096
    # Gets and conditional writes of one connection that wait for the index or the disk.
    waiting_requests_max: int = 1_024
    # Positions, logs and journal records grow with it; ids are 32-bit.
    partitions_max: int = 4_096
    feeds_max: int = 10_000
    # An idle connection says something this often; one that was silent for three times as long is dropped.
    noop_interval_s: float = 10.0
    # HELLO has to come within this.
    hello_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Config:
    """Where a node keeps its data and where it listens; None: that door stays shut. Port 0: any free one."""

    data: str
    listen: tuple[str, int] = ("127.0.0.1", 4700)
    http: tuple[str, int] | None = ("127.0.0.1", 4780)
    ws: tuple[str, int] | None = ("127.0.0.1", 4790)
    limits: Limits = field(default_factory=Limits)
    journal_file_bytes_max: int = 256 * 1024 * 1024
