"""Revoked and expired tokens: streams end on every listener of every member, and what a cut-off member does."""

import contextlib
import json
import time
from pathlib import Path

import pytest
import trio
from tests.tailrace_server.replication.made_set import until
from trio_websocket import open_websocket

import tailrace
from tailrace.link.address import Address
from tailrace_server.serving.tailing import ws_listener


def token_in(path):
    """The token in a file; None before it is there."""
    return path.read_text().strip() if path.exists() else None


async def admin_of(made):
    """The token of the leader's file."""
    await made.start()
    leader = await made.settled()
    path = Path(leader.config.data, "admin.token")
    await until(lambda: token_in(path))
    return token_in(path)


@pytest.fixture
async def made(new_set):
    return new_set(auth=True, peer_token="p" * 40)


class Ends:
    """When each stream has ended, and that it was for the rights."""

    def __init__(self, nursery):
        self._nursery = nursery
        self.at = {}

    async def frames(self, name, node, token):
        client = tailrace.connect(node.url, token=token, state="any", retry_for=60)
        await self._nursery.start(self._read_frames, name, client)

    async def _read_frames(self, name, client, task_status):
        with pytest.raises(tailrace.Forbidden, match="token 'reader' was revoked or has expired"):  # noqa: PT012
            async with client, client.feed("orders").consume() as stream:
                async for event in stream:
                    if isinstance(event, tailrace.Mutations):
                        task_status.started()
        self.at[name] = time.monotonic()

    async def websocket(self, name, node, token):
        await self._nursery.start(self._read_websocket, name, node.node, token)

    async def _read_websocket(self, name, node, token, task_status):
        header = [(b"authorization", f"Bearer {token}".encode())]
        async with (
            ws_listener(node.handle, node, ("127.0.0.1", 0)) as address,
            open_websocket(*address, "/feeds/orders", use_ssl=False, extra_headers=header) as socket,
        ):
            while (message := json.loads(await socket.get_message()))["type"] != "error":
                if message["type"] == "mutations":
                    task_status.started()
        assert message["error"] == "Forbidden"
        self.at[name] = time.monotonic()


@contextlib.asynccontextmanager
async def streams_everywhere(made, token):
    """A stream by frames and one by WebSocket at each member."""
    async with trio.open_nursery() as nursery:
        ends = Ends(nursery)
        for number, node in enumerate(made):
            await ends.frames(f"frames {number}", node, token)
            await ends.websocket(f"websocket {number}", node, token)
        yield ends
    assert len(ends.at) == 2 * len(made.nodes)


async def test_a_revoked_token_ends_all_streams_of_all_members(made, record_property):
    admin_token = await admin_of(made)
    async with tailrace.connect(made.url, token=admin_token, retry_for=60) as admin:
        reader = await admin.create_token("reader", role="read")
        await made.filled(admin, {b"k": b"v"})
        async with streams_everywhere(made, reader) as ends:
            await admin.revoke_token("reader")
            began = time.monotonic()
    last = max(ends.at.values()) - began
    record_property("seconds_to_last_end", last)
    print(f"the last of {len(ends.at)} streams ended {last:.3f} s after the revocation")


async def test_a_token_that_expires_ends_all_streams_of_all_members(made):
    admin_token = await admin_of(made)
    async with tailrace.connect(made.url, token=admin_token, retry_for=60) as admin:
        await made.filled(admin, {b"k": b"v"})
        reader = await admin.create_token("reader", role="read", expires_s=5.0)
        async with streams_everywhere(made, reader):
            pass


class Cut:
    """A member that no other one reaches, and that reaches no other."""

    def __init__(self, made, member):
        self._made, self._member = made, member
        self._before = {}

    def __enter__(self):
        for node in self._made:
            network = node.node.host.network
            self._before[network] = network.connect
            others = [each.address for each in self._made] if node is self._member else [self._member.address]
            network.connect = self._refusing(network.connect, others)
            for connection in node.node.connections:
                if connection.is_of_node and (node is self._member or connection.replica is not None):
                    connection.transport.close()

    def _refusing(self, connect, lost):
        async def refuse(address):
            if Address(*address) in lost:
                raise OSError("cut off")
            return await connect(address)

        return refuse

    def __exit__(self, *_):
        for network, connect in self._before.items():
            network.connect = connect


async def test_a_member_that_was_cut_off_ends_them_when_it_is_back(made):
    admin_token = await admin_of(made)
    async with tailrace.connect(made.url, token=admin_token, retry_for=60) as admin, trio.open_nursery() as nursery:
        reader = await admin.create_token("reader", role="read")
        await made.filled(admin, {b"k": b"v"})
        lost = next(node for node in made if not node.leads)
        ends = Ends(nursery)
        await ends.frames("cut off", lost, reader)
        with Cut(made, lost):
            await until(lambda: not any(lost.follows(node) for node in made if node is not lost))
            await admin.revoke_token("reader")
            with pytest.raises(tailrace.Forbidden):
                async with tailrace.connect(made.leader.url, token=reader):
                    pass
            # The token still counts where the revocation has not come.
            assert "reader" in [info.name for info in lost.node.services.token_changes.tokens()]
            assert not ends.at
    assert list(ends.at) == ["cut off"]
