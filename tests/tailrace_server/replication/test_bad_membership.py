"""Leaders whose disks do not take MEMBERSHIP: the set gets another leader all the same."""

import dataclasses
import errno
import os

import pytest
from tests.tailrace_server.replication.made_set import REPLICATION, make_set, until

from tailrace.errors import TailraceError
from tailrace_server.config import Failover
from tailrace_server.host.disk import RealDisk
from tailrace_server.replication import giving_way
from tailrace_server.replication.membership import FILE_NAME
from tailrace_server.replication.promises import keep_promise

AUTO = dataclasses.replace(
    REPLICATION, failover=Failover.AUTO, heartbeat_s=0.05, leader_timeout_s=0.6, majority_timeout_s=0.6
)
ROWS = {b"a": b"1", b"b": b"2"}


def reserve_bytes(data):
    path = f"{data}/RESERVE"
    return os.stat(path).st_size if os.path.exists(path) else 0


class Faults:
    """The faults of the disks of nodes, in all directories below those of ``add``."""

    def __init__(self, monkeypatch):
        self._where, self._reserves = {}, {}
        self._refused = 0
        create, free_bytes = RealDisk.create, RealDisk.free_bytes

        def created(disk, path):
            error = self._error_of(path)
            if error is not None:
                self._refused += 1
                raise error
            return create(disk, path)

        def free(disk, path):
            codes = [code for (data, _), code in self._where.items() if path.startswith(data)]
            return 0 if errno.ENOSPC in codes else free_bytes(disk, path)

        monkeypatch.setattr(RealDisk, "create", created)
        monkeypatch.setattr(RealDisk, "free_bytes", free)

    def _error_of(self, path):
        for (data, name), code in self._where.items():
            if path.startswith(f"{data}/{name}") and not (code == errno.ENOSPC and self._has_room(data)):
                return OSError(code, os.strerror(code), path)
        return None

    def _has_room(self, data):
        """Returns whether RESERVE has got smaller since the disk was full."""
        return reserve_bytes(data) < self._reserves[data]

    def add(self, node, code, name=""):
        """Lets each new file below the directory whose name begins with ``name`` fail."""
        self._where[node.config.data, name] = code
        self._reserves[node.config.data] = reserve_bytes(node.config.data)

    def end(self):
        self._where.clear()

    async def more_refused(self, count):
        """Returns once so many more files were refused."""
        wanted = self._refused + count
        await until(lambda: self._refused >= wanted)


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.setattr(giving_way, "REFUSING_SECONDS", 0.0)
    return Faults(monkeypatch)


async def started(tmp_path, nursery, failover):
    nodes = make_set(tmp_path, nursery, replication=AUTO if failover == "auto" else REPLICATION)
    await nodes.start()
    await nodes.settled()
    return nodes


def without_reserve(node):
    """Leaves the node no reserve, as on a file system that cannot allocate."""
    node.node.storage.space._reserve._nbytes = 0
    node.node.storage.space._reserve.release()


BAD = [pytest.param(errno.ENOSPC, "", id="full"), pytest.param(errno.EIO, FILE_NAME, id="eio")]


@pytest.mark.parametrize("failover", ["auto", "manual"])
@pytest.mark.parametrize(("code", "name"), BAD)
@pytest.mark.slow
async def test_a_command_hands_over_a_leader_that_cannot_write_its_promise(
    tmp_path, nursery, faults, caplog, code, name, failover
):
    nodes = await started(tmp_path, nursery, failover)
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        second, third = [node for node in nodes if node is not first]
        without_reserve(first)
        faults.add(first, code, name)
        await first.hand_over(second)
        assert second.leads
        assert not first.leads
        assert first.member.local.file.now.term == 1
        await feed.put(b"c", b"3", level="quorum")
        await faults.more_refused(5)
        assert "cannot be written" in first.node.status()["replication"]["doing"]
        said = [record.message for record in caplog.records if f"{FILE_NAME} cannot be written" in record.message]
        assert len(said) <= 4
        assert third.follows(second)
        faults.end()
        assert await nodes.level("orders") is second
        assert first.rows("orders") == {**ROWS, b"c": b"3"}
        assert first.member.local.file.now.term == second.member.local.file.now.term


async def test_a_leader_with_a_full_disk_and_no_reserve_hands_over_by_itself(tmp_path, nursery, faults):
    nodes = await started(tmp_path, nursery, "auto")
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        without_reserve(first)
        faults.add(first, errno.ENOSPC)
        await first.node.storage.space.look()
        await feed.put(b"c", b"3", level="quorum")
        await until(lambda: any(node.leads for node in nodes if node is not first))
        assert not first.leads
        faults.end()
        await first.node.storage.space.look()
        assert await nodes.level("orders") is not first


async def test_a_leader_with_a_full_disk_promises_by_a_piece_of_the_reserve(tmp_path, nursery, faults):
    nodes = await started(tmp_path, nursery, "auto")
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first = nodes.leader
        space = first.node.storage.space
        await space.look()
        held_bytes = space.reserved_bytes
        faults.add(first, errno.ENOSPC)
        await space.look()
        await until(lambda: not first.leads)
        second = await nodes.settled()
        assert second is not first
        assert first.member.local.file.now.term == second.member.local.file.now.term
        assert space.reserved_bytes < held_bytes
        faults.end()
        await space.look()
        assert space.reserved_bytes == held_bytes


@pytest.mark.slow
async def test_after_a_failed_handover_a_leader_that_cannot_lead_anew_steps_down(tmp_path, nursery, faults):
    """The target has promised itself the next term, and then has failed. The old leader cannot write a later one."""
    nodes = await started(tmp_path, nursery, "auto")
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        second = next(node for node in nodes if node is not first)
        without_reserve(first)
        faults.add(first, errno.EIO, FILE_NAME)
        await keep_promise(second.member, 2)
        await until(lambda: any(node.leads for node in nodes if node is not first))
        assert not first.leads
        await feed.put(b"c", b"3", level="quorum")
        faults.end()
        assert await nodes.level("orders") is not first


async def test_a_leader_that_stepped_down_without_its_promise_does_not_lead_again_after_a_restart(
    tmp_path, nursery, faults
):
    nodes = await started(tmp_path, nursery, "manual")
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        second = next(node for node in nodes if node is not first)
        faults.add(first, errno.EIO, FILE_NAME)
        await first.hand_over(second)
        await feed.put(b"c", b"3", level="quorum")
        await first.kill()
        faults.end()
        await first.start()
        assert await nodes.level("orders") is second
        assert first.rows("orders") == {**ROWS, b"c": b"3"}


@pytest.mark.slow
async def test_a_handover_without_the_leaders_vote_takes_a_majority_of_others(tmp_path, nursery, faults):
    """The third member is down: neither member leads, and the leader that was does not go on as if it led."""
    nodes = await started(tmp_path, nursery, "auto")
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        second, third = [node for node in nodes if node is not first]
        await third.kill()
        faults.add(first, errno.EIO, FILE_NAME)
        with pytest.raises(TailraceError, match="1 of the 2 voters"):
            await first.hand_over(second)
        assert not first.leads
        assert not second.leads
        await third.start()
        await until(lambda: second.leads or third.leads)
        await feed.put(b"c", b"3", level="quorum")
        faults.end()
        assert await nodes.level("orders") in (second, third)
