"""The ports that tests give to servers which they start again."""

from pathlib import Path

import pytest

from tailrace.testing.ports import free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_each_is_another_one():
    assert len(set(free_ports(50))) == 50


@pytest.mark.skipif(not RANGE.exists(), reason="only Linux says which ports outgoing connections are given")
def test_none_is_given_to_outgoing_connections():
    first = int(RANGE.read_text().split()[0])
    assert all(port < first for port in free_ports(50))
