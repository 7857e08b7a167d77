"""Sets whose nodes speak TLS with each other, and show their certificates."""

import dataclasses
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.tailrace_server.replication.made_set import COPY_ALWAYS, MadeNode, MadeSet, make_config, until

import tailrace
from tailrace import Put
from tailrace.errors import Forbidden
from tailrace.link.address import Address
from tailrace.testing.ports import free_ports
from tailrace.tls import TlsFiles, client_context
from tailrace.trio.request import ask
from tailrace.trio.tcp import connect_tcp
from tailrace.trio.tls import connect_tls
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Failover, TlsConfig

FAILING_OVER = dataclasses.replace(
    COPY_ALWAYS, failover=Failover.AUTO, heartbeat_s=0.05, leader_timeout_s=0.6, majority_timeout_s=0.6
)
OF_NODE = Hello(name="asserts to be a node", of_node=True)


@pytest.fixture(scope="module")
def client_authority(tmp_path_factory, authority):
    return type(authority)(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def tls(authority, client_authority):
    """Nodes have certificates of one authority, clients of another one."""
    return authority.node(client_ca=client_authority.path, peer_ca=authority.path)


@pytest.fixture
def set_options(tls):
    return {"tls": tls, "replication": FAILING_OVER}


async def question(node, context, opcode=Opcode.MEMBER, value=None, hello=OF_NODE):
    connect = partial(connect_tls, connect_tcp, context)
    return await ask(node.address, opcode, value or {}, timeout_s=60.0, connect=connect, hello=hello)


@pytest.mark.slow
async def test_rows_outlive_the_leader_and_a_member_catches_up(members, authority):
    leader = await members.settled()
    async with tailrace.connect(members.url, tls=authority.client(), retry_for=120.0) as client:
        orders = await client.create_feed("orders", partitions=2)
        await orders.write([Put(b"%d" % number, os.urandom(2_000)) for number in range(2_000)], level="quorum")
        await members.level("orders")
        await leader.flush()
        await leader.kill()
        await orders.write([Put(b"%d" % number, b"later") for number in range(1_000, 3_000)], level="quorum")
        assert members.leader is not leader
        leader.replace_disk()
        await leader.start()
        after = await members.level("orders")
        assert leader.rows("orders") == after.rows("orders")
        assert len(leader.rows("orders")) == 3_000


@pytest.mark.slow
async def test_a_node_without_a_certificate_is_refused(members, authority, client_authority):
    node = await members.settled()
    as_client = client_context(TlsFiles(authority.path, client_authority.issue("shop")))
    for context in (authority.client(), as_client):
        with pytest.raises(Forbidden, match=r"HELLO of a node: .*--tls-peer-ca"):
            await question(node, context)
        with pytest.raises(Forbidden, match=r"PROMISE: .*--tls-peer-ca"):
            await question(node, context, Opcode.PROMISE, hello=Hello(name="lies"))
    assert (await question(node, authority.client(authority.issue("node 4"))))["role"] == "leader"
    assert (await question(node, as_client, hello=Hello(name="an operator")))["role"] == "leader"


@pytest.mark.slow
async def test_a_node_without_tls_finds_its_set_no_more(members):
    leader = await members.settled()
    plain = next(node for node in members if node is not leader)
    await plain.stop()
    plain.config = dataclasses.replace(plain.config, tls=None)
    await plain.start()
    await plain.member.peers.look()
    assert list(plain.member.peers.states.values()) == [None, None]
    assert not plain.follows(leader)


@pytest.fixture
def elsewhere(tmp_path, nursery, authority):
    """A set of three whose members have addresses and certificates of their own."""
    addresses = [Address(f"127.0.0.{number}", port) for number, port in enumerate(free_ports(3), 1)]

    def made(number, address):
        path = tmp_path / f"{number}.pem"
        shutil.copy(authority.issue(f"node {number}", address.host), path)
        options = {"members": tuple(addresses), "tls": TlsConfig(str(path), client_ca=authority.path)}
        return make_config(tmp_path / f"data {number}", address, replication=FAILING_OVER, **options)

    return MadeSet([MadeNode(made(number, address), nursery) for number, address in enumerate(addresses)])


def exchange(first, second):
    """Exchanges the files of two nodes."""
    paths = [node.config.tls.cert for node in (first, second)]
    texts = [Path(path).read_text() for path in paths]
    for path, text in zip(paths, reversed(texts), strict=True):
        Path(path).write_text(text)


@pytest.mark.slow
async def test_swapped_certificates_are_named(elsewhere, caplog):
    """The log and status of each node say which certificate is wrong. Once the files are right, the set goes on."""
    first, second, third = elsewhere
    exchange(first, second)
    await elsewhere.start()
    wrong = {str(node.address) for node in (first, second)}
    await until(lambda: third.member.peers.misfits.keys() == wrong)
    await until(lambda: first.member.peers.misfits.keys() == {str(second.address)})
    for name in wrong:
        said = f"the certificate of {name} is for another host: use a name that it has, or make one with this name"
        assert said in third.member.progress
        lines = [record.getMessage() for record in caplog.records if said in record.getMessage()]
        assert 1 <= len(lines) <= 2, lines  # of each node that asks it
    exchange(first, second)
    for node in elsewhere:
        assert node.node.host.tls.reload()
    await elsewhere.settled()
    await until(lambda: not any(node.member.peers.misfits for node in elsewhere))


@pytest.mark.slow
async def test_an_expired_certificate_is_named(elsewhere, authority):
    """A node with one is refused by the others, as a server and as a client."""
    first, *others = elsewhere
    cert = first.config.tls.cert
    shutil.copy(cert, f"{cert}.right")
    shutil.copy(authority.issue("late", first.address.host, expired=True), cert)
    await elsewhere.start()
    name = str(first.address)
    await until(lambda: all(node.member.peers.misfits.keys() == {name} for node in others))
    for node in others:
        assert f"the certificate of {name} has expired: renew the file of its --tls-cert" in node.member.progress
    await until(lambda: first.member.peers.misfits.keys() == {str(node.address) for node in others})
    assert "refuses the certificate of this program" in first.member.progress
    shutil.copy(f"{cert}.right", cert)
    assert first.node.host.tls.reload()
    await until(lambda: not any(node.member.peers.misfits for node in elsewhere))
    await elsewhere.settled()


@pytest.mark.long
@pytest.mark.slow
async def test_a_new_disk_gets_100_mb(members, authority):
    await members.settled()
    async with tailrace.connect(members.url, tls=authority.client(), retry_for=120.0) as client:
        orders = await client.create_feed("orders", partitions=2)
        async with orders.writer(level="quorum") as writer:
            for number in range(1_600):
                await writer.put(b"%d" % number, os.urandom(65_536))
        leader = await members.level("orders")
        await leader.flush()
        late = next(node for node in members if node is not leader)
        await late.kill()
        late.replace_disk()
        await late.start()
        await members.level("orders")
        assert late.rows("orders") == leader.rows("orders")
        assert len(late.rows("orders")) == 1_600
