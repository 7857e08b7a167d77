"""Shares the file descriptors of the process between connections, segments and all else."""

from __future__ import annotations

import dataclasses
import logging
import resource

from tailrace_server.config import Limits, StorageConfig

log = logging.getLogger("tailrace.server")

# The descriptors for all but connections of clients and nodes: 2,048 segments that stay open, as many again for
# compactions, journal, stages and the other listeners, and room for more of each.
OTHERS = 7_904
# The divisors for connections and for segments if few are permitted.
CONNECTIONS_SHARE = 2
SEGMENTS_SHARE = 4


def wanted_descriptors(limits: Limits) -> int:
    """Returns the number of descriptors that a node with these limits may use: 12,000 by default."""
    more = max(0, limits.websocket_connections_max - Limits().websocket_connections_max)
    return max(limits.connections_max, Limits().connections_max) + more + OTHERS


def connections_of(descriptors: int) -> int:
    """Returns how many connections may be open if the process may have so many descriptors."""
    return max(1, descriptors // CONNECTIONS_SHARE, descriptors - OTHERS)


def permitted_limits(wanted: Limits, descriptors: int) -> Limits:
    """Returns the limits with no more connections than the descriptors allow. Logs it if those are fewer."""
    most = connections_of(descriptors)
    if most >= wanted.connections_max:
        return wanted
    log.warning(
        "limits.connections_max is %d, and with %d open files this process serves %d connections: permit it %d open"
        " files (ulimit -n; LimitNOFILE of systemd), and start it again",
        *(wanted.connections_max, descriptors, most, wanted_descriptors(wanted)),
    )
    return dataclasses.replace(wanted, connections_max=most)


def permitted_storage(wanted: StorageConfig, descriptors: int) -> StorageConfig:
    """Returns the settings with no more open segments than a quarter of the descriptors."""
    return dataclasses.replace(wanted, segments_open_max=min(wanted.segments_open_max, descriptors // SEGMENTS_SHARE))


def raise_descriptor_limit(wanted: int) -> int:
    """Lets the process have ``wanted`` descriptors, if the system permits it. Returns how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return allowed
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # a container may forbid it
        return soft
    return allowed
