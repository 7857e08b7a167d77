"""A leader whose disk refuses its work, though it is not full: another member leads."""

import dataclasses
import errno

import pytest
import trio
from tests.tailrace_server.replication.made_set import make_set, until
from tests.tailrace_server.replication.test_succession import AUTO, ROWS

from tailrace.errors import Retryable
from tailrace_server.replication import giving_way


@pytest.fixture
async def nodes(tmp_path, nursery, monkeypatch):
    """A set of three that fails over by itself."""
    monkeypatch.setattr(giving_way, "REFUSING_SECONDS", 0.0)
    nodes = make_set(tmp_path, nursery, replication=AUTO)
    await nodes.start()
    await nodes.settled()
    return nodes


async def fail(partition):
    raise OSError(errno.EACCES, "the directory belongs to another user")


async def hang(partition):
    await trio.sleep_forever()


def hinder_flushes(node, flush, monkeypatch):
    """Has each flush of the node fail or hang, and its memory be full."""

    storage = node.node.storage
    monkeypatch.setattr(storage.flusher, "flush", flush)
    monkeypatch.setattr(storage.flusher, "_limits", storage.flusher._limits._replace(memory_bytes=1))
    monkeypatch.setattr(storage.memory, "bytes_max", 1)
    monkeypatch.setattr(storage, "_replication", dataclasses.replace(storage._replication, disk_timeout_s=0.1))


class RefusingFile:
    """The journal's file on a disk that takes no more of it."""

    def __init__(self, file, code):
        self._file, self._code = file, code

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write_at(self, offset, buffers, nbytes):
        raise OSError(self._code, "refused")


def hinder_journal(node, monkeypatch, code):
    """Lets the node's journal take no record; the free space says nothing of it."""
    journal = node.node.storage.journal
    monkeypatch.setattr(journal, "_file", RefusingFile(journal._file, code))


@pytest.mark.parametrize(("flush", "why"), [(fail, "belongs to another user"), (hang, "a flush has taken")])
async def test_a_leader_whose_flushes_fail_or_hang_until_its_memory_is_full_hands_over(nodes, monkeypatch, flush, why):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        hinder_flushes(first, flush, monkeypatch)
        await feed.put(b"c", b"3", level="quorum")
        await until(lambda: not first.leads)
        second = await nodes.settled()
        assert second is not first
        assert second.rows("orders") == {**ROWS, b"c": b"3"}
        assert why in first.node.status()["failure"]


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EMFILE])
async def test_a_leader_whose_journal_refuses_records_hands_over(nodes, monkeypatch, code):
    """A quota, or the limit of open files: the disk has space."""
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        hinder_journal(first, monkeypatch, code)
        await feed.put(b"c", b"3", level="quorum")
        assert await nodes.settled() is not first


@pytest.mark.slow
async def test_it_leads_on_if_each_disk_refuses_and_tells_it(nodes, monkeypatch):
    async with nodes.client(retry_for=1.0) as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        for node in nodes:
            if node is not first:
                monkeypatch.setattr(node.node.storage.journal, "refusal", "no space is left")
        hinder_journal(first, monkeypatch, errno.EDQUOT)
        await until(lambda: not any(seen.has_room for seen in first.member.peers.states.values()))
        with pytest.raises(Retryable):
            await feed.put(b"c", b"3", level="quorum")
        assert first.leads
        assert "takes no record: refused" in first.node.status()["failure"]
        monkeypatch.undo()
        await feed.put(b"c", b"3", level="quorum")
        assert first.node.status()["healthy"]
