"""Messages to a service manager."""

from __future__ import annotations

import socket

import pytest

from tailrace_server.node.service_manager import READY, STOPPING, tell_service_manager


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_manager_gets_the_state(tmp_path, monkeypatch, is_abstract):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"@tailrace-{tmp_path.name}" if is_abstract else str(tmp_path / "s")
        manager.bind("\0" + name[1:] if is_abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        tell_service_manager(READY)
        tell_service_manager(STOPPING)
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize("name", [None, "", "relative", "/no/such/socket"])
def test_without_a_manager_nothing_happens(monkeypatch, name):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if name is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
    tell_service_manager(READY)
