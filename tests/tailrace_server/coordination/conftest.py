"""Coordinators for tests: one of each kind, and etcd by itself."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import trio
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.coordination.made_etcd import Etcd, require_etcd

from tailrace_server.coordination.etcd_store import EtcdStore
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.coordination.store_state import StoreHealth
from tailrace_server.coordination.store_url import parse_store_url

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory):
    """One etcd for all tests that only use keys of their own."""
    require_etcd()
    etcd = Etcd(tmp_path_factory.mktemp("etcd") / "data").start()
    try:
        yield etcd.wait()
    finally:
        etcd.stop()


@pytest.fixture
def start_etcd(tmp_path):
    """Starts an etcd that the test may stop; ``start_etcd(*options)``."""
    require_etcd()
    started = []

    def start(*options, scheme="http"):
        etcd = Etcd(tmp_path / f"etcd-{len(started)}", *options, scheme=scheme)
        started.append(etcd)
        return etcd.start()

    yield start
    for etcd in started:
        etcd.stop()


@contextlib.asynccontextmanager
async def etcd_store(url, slow_after_s=5.0):
    """An `EtcdStore`, whose health has a list ``told`` of the sentences that it logged."""
    told = []
    health = StoreHealth(trio.current_time, told.append, slow_after_s)
    health.told = told
    store = EtcdStore(parse_store_url(url), health)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture(params=["static", pytest.param("etcd", marks=pytest.mark.long)])
def coordinator(request):
    """Makes the context of a coordinator of each kind, and a prefix that no other test uses."""
    prefix = f"/test/{next(_numbers)}/"
    if request.param == "etcd":
        return etcd_store(f"etcd://{request.getfixturevalue('shared_etcd').endpoint}"), prefix

    @contextlib.asynccontextmanager
    async def static():
        disk = MemoryDisk()
        disk.make_directory("/data")
        yield StaticStore(disk, "/data/CLUSTER")

    return static(), prefix
