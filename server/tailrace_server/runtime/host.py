"""The environment of a node, in one object."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace_server.config import Config
from tailrace_server.host.clock import Clock, SystemClock
from tailrace_server.host.disk import Disk, RealDisk
from tailrace_server.host.greetings import Greetings
from tailrace_server.host.network import Network, TcpNetwork
from tailrace_server.host.randomness import Randomness, SystemRandomness
from tailrace_server.host.tls import NodeTls
from tailrace_server.runtime.workers import ThreadWorkers, Workers


@dataclass(frozen=True, slots=True)
class Host:
    """The environment of a node. A test or a simulator hands over its own.

    ``owns_process``: the process belongs to the node, which may set it up for itself (Python's garbage collector).
    ``tls``: the certificates that ``network`` uses, if it speaks TLS. ``greetings``: counts its handshakes.
    """

    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)
    disk: Disk = field(default_factory=RealDisk)
    network: Network = field(default_factory=TcpNetwork)
    workers: Workers = field(default_factory=ThreadWorkers)
    owns_process: bool = True
    tls: NodeTls | None = None
    greetings: Greetings | None = None


def system_host(config: Config) -> Host:
    """Returns the host of a node of this machine. Raises ValueError if a file of its certificates cannot be used."""
    limits = config.limits
    if config.tls is None:
        return Host(network=TcpNetwork(busy_poll_s=limits.busy_poll_s))
    tls = NodeTls(config.tls)
    greetings = Greetings(limits)
    network = TcpNetwork(tls, limits.hello_timeout_s, greetings, limits.busy_poll_s)
    return Host(network=network, tls=tls, greetings=greetings)
