"""Real etcds that are gone, stopped, restored, full, or refuse: the state that status names, and its end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import ssl
import subprocess

import pytest
import trio
from tests.processes.proxy import open_proxy
from tests.tailrace_server.coordination.conftest import etcd_store

from tailrace.testing.ports import free_port
from tailrace_server.coordination import etcd_gateway
from tailrace_server.coordination import etcd_store as module
from tailrace_server.coordination.coordinator import (
    LeaseGone,
    Put,
    StoreDamaged,
    StoreError,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
    Unchanged,
)
from tailrace_server.coordination.etcd_codec import encode
from tailrace_server.coordination.etcd_gateway import REQUEST_S
from tailrace_server.coordination.store_state import StoreEvent, StoreState

pytestmark = pytest.mark.long
KEY = "/test/a"


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch):
    monkeypatch.setattr(etcd_gateway, "REQUEST_S", 0.7)


async def answers(store):
    while True:
        try:
            return await store.get(KEY)
        except StoreError:
            await trio.sleep(0.05)


async def test_a_refused_connection_is_told_in_the_words_of_the_system():
    async with etcd_store(f"etcd://127.0.0.1:{free_port()}") as store:
        with pytest.raises(StoreUnreachable):
            await store.get(KEY)
        assert store.health.state is StoreState.UNREACHABLE
        assert store.health.why.endswith("Connection refused")


async def test_an_etcd_that_is_gone_and_comes_back(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        assert store.health.state is StoreState.CONNECTING
        await store.txn([], [Put(KEY, b"1")])
        assert store.health.state is StoreState.CONNECTED
        async with store.watch("/test/") as watch:
            await watch.next()
            etcd.stop()
            with pytest.raises(StoreUnreachable):
                await store.get(KEY)
            with pytest.raises(StoreUnreachable):
                await store.txn([], [Put(KEY, b"2")])
            assert store.health.state is StoreState.UNREACHABLE
            assert etcd.endpoint in store.health.why
            etcd.start()
            await answers(store)
            assert store.health.state is StoreState.CONNECTED
            await store.txn([], [Put(KEY, b"3")])
            assert (await watch.next()).entries[KEY].value == b"3"
    assert len(store.health.told) == 3


async def test_the_next_endpoint_is_asked_and_then_stays_first(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://127.0.0.1:{free_port()},{etcd.endpoint}") as store:
        await store.txn([], [Put(KEY, b"1")])
        assert store.health.state is StoreState.CONNECTED
        assert store.health.endpoint == f"http://{etcd.endpoint}"
        assert not store.health.counts[StoreEvent.NO_ANSWER]
        async with store.watch("/test/") as watch:
            assert (await watch.next()).entries[KEY].value == b"1"


async def test_a_transaction_without_an_answer_may_have_been_made(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        await store.get(KEY)
        etcd.signal(signal.SIGSTOP)
        with pytest.raises(StoreOutcomeUnknown):
            await store.txn([Unchanged(KEY, 0)], [Put(KEY, b"1")])
        assert store.health.state is StoreState.UNREACHABLE
        with pytest.raises(StoreUnreachable):
            await store.get(KEY)
        etcd.signal(signal.SIGCONT)
        assert (await answers(store)).value in (b"1", None)


async def test_slow_answers_are_told(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}", slow_after_s=0.2) as store:
        etcd.signal(signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get, KEY)
            await trio.sleep(0.3)
            etcd.signal(signal.SIGCONT)
        assert store.health.state is StoreState.SLOW
        while store.health.state is StoreState.SLOW:  # on a busy machine the next answer may be slow, too
            await store.get(KEY)
        assert store.health.state is StoreState.CONNECTED


async def test_a_backup_that_is_restored_is_told_by_its_revision(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store, store.watch("/test/") as watch:
        await store.txn([], [Put(KEY, b"1")])
        await watch.next()
        etcd.stop()
        shutil.copytree(etcd.directory, etcd.directory.with_suffix(".backup"))
        etcd.start()
        await answers(store)
        await store.txn([], [Put(KEY, b"2")])
        assert (await watch.next()).entries[KEY].value == b"2"
        etcd.stop()
        shutil.rmtree(etcd.directory)
        shutil.copytree(etcd.directory.with_suffix(".backup"), etcd.directory)
        etcd.start()
        assert (await watch.next()).entries[KEY].value == b"1"
        assert store.health.state is StoreState.RESTORED
        assert "went back" in store.health.why
        await store.get(KEY)
        assert store.health.state is StoreState.RESTORED
        assert store.health.counts[StoreEvent.WENT_BACK] == 1


async def test_another_etcd_at_the_address_is_told_and_ends_leases(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        lease = await store.lease(60)
        lease.ttl_s = 1  # renewed every third of a second
        await store.txn([], [Put(KEY, b"1", lease.id)])
        etcd.stop()
        shutil.rmtree(etcd.directory)
        etcd._peer_port = free_port()  # the id of a cluster is made of its addresses
        etcd.start()
        await answers(store)
        assert store.health.state is StoreState.RESTORED
        assert await lease.keep() == "etcd was restored"


async def test_a_lease_that_etcd_ends_early_is_told(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        lease = await store.lease(2)
        etcd.ask("lease/revoke", {"ID": str(lease.id)})
        assert await lease.keep() == "etcd ended it early"
        assert store.health.state is StoreState.LEASE_LOST
        with pytest.raises(LeaseGone):
            await store.txn([], [Put(KEY, b"1", lease.id)])


async def test_a_lease_that_is_not_renewed_in_time_counts_as_ended_here(start_etcd):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        lease = await store.lease(2)
        etcd.signal(signal.SIGSTOP)
        begun = trio.current_time()
        assert await lease.keep() == "it was not renewed for 2 s"
        assert store.health.counts[StoreEvent.LEASE_ENDED] == 1
        assert trio.current_time() - begun >= 1.5
        assert trio.current_time() >= lease.ends


async def test_a_watch_whose_place_was_compacted_reads_all_keys_again(start_etcd, monkeypatch):
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        for number in range(5):
            await store.txn([], [Put(KEY, b"%d" % number)])
        etcd.ask("kv/compaction", {"revision": "5", "physical": True})
        right = module.header_of
        monkeypatch.setattr(module, "header_of", lambda value: right(value)._replace(revision=1))
        async with store.watch("/test/") as watch:
            assert (await watch.next()).entries[KEY].value == b"4"
            with trio.move_on_after(0.5):
                await watch.next()
            assert store.health.counts[StoreEvent.COMPACTED]
            monkeypatch.undo()
            await store.txn([], [Put(KEY, b"5")])
            assert (await watch.next()).entries[KEY].value == b"5"
        assert store.health.state is StoreState.CONNECTED


async def test_a_change_between_the_read_and_the_watch_is_told_though_a_later_one_follows(start_etcd, monkeypatch):
    """The watch's first message tells etcd's revision, and carries no change. The later one makes the newest equal."""
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        await store.txn([], [Put(KEY, b"1"), Put("/test/b", b"1")])
        right = store.gateway.stream

        @contextlib.asynccontextmanager
        async def stream(*arguments):
            etcd.ask("kv/put", {"key": encode(KEY), "value": encode(b"2")})
            async with right(*arguments) as lines:
                yield lines

        monkeypatch.setattr(store.gateway, "stream", stream)
        async with store.watch("/test/") as watch:
            assert (await watch.next()).entries[KEY].value == b"1"
            with trio.fail_after(60):
                assert (await watch.next()).entries[KEY].value == b"2"
            revision = (await store.get(KEY)).revision
            await store.txn([], [Put("/test/b", b"2")])
            view = await watch.next()
        assert {key: entry.value for key, entry in view.entries.items()} == {KEY: b"2", "/test/b": b"2"}
        assert view.revision == revision + 1
        assert not store.health.counts[StoreEvent.WATCH_LOST]


@pytest.mark.parametrize("change", ["put", "delete", "both"])
async def test_a_watch_whose_connection_was_lost_on_the_way_finds_what_it_missed(start_etcd, change):
    etcd = start_etcd().wait()
    async with open_proxy(("127.0.0.1", etcd.port)) as proxy, etcd_store(f"etcd://127.0.0.1:{proxy.port}") as store:
        await store.txn([], [Put(KEY, b"1"), Put("/test/b", b"1")])
        async with store.watch("/test/") as watch:
            assert set((await watch.next()).entries) == {KEY, "/test/b"}
            proxy.forget()
            if change != "put":
                etcd.ask("kv/deleterange", {"key": encode("/test/b")})
            if change != "delete":
                etcd.ask("kv/put", {"key": encode("/test/c"), "value": encode(b"2")})
            expected = {"put": {KEY, "/test/b", "/test/c"}, "delete": {KEY}, "both": {KEY, "/test/c"}}[change]
            with trio.fail_after(60):
                assert set((await watch.next()).entries) == expected
            await store.txn([], [Put(KEY, b"3")])
            assert (await watch.next()).entries[KEY].value == b"3"


async def test_a_silent_watch_without_changes_stays_open(start_etcd, monkeypatch):
    monkeypatch.setattr(module, "PING_S", 0.05)
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store, store.watch("/test/") as watch:
        await store.txn([], [Put(KEY, b"1")])
        await watch.next()
        lines = watch._lines
        asked = []
        right = store.gateway.ask

        async def ask(*arguments, **options):
            asked.append(arguments)
            return await right(*arguments, **options)

        monkeypatch.setattr(store.gateway, "ask", ask)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.next)
            while len(asked) < 5:  # noqa: ASYNC110 - the watch asks by itself
                await trio.sleep(0.01)
            await store.txn([], [Put(KEY, b"2")])
        assert watch._lines is lines
        assert not store.health.counts[StoreEvent.WATCH_LOST]


async def test_an_answer_that_is_too_large_is_not_read(start_etcd, monkeypatch):
    monkeypatch.setattr(etcd_gateway, "REQUEST_S", 60.0)  # a megabyte takes its time on a busy machine
    etcd = start_etcd().wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        for number in range(4):
            await store.txn([], [Put(f"{KEY}{number}", bytes(1_000_000))])
        with pytest.raises(StoreDamaged, match="more than 4194304 bytes"):
            await store.gateway.ask("kv/range", module.prefix_range("/test/"))
        assert (await store.get(f"{KEY}0")).value == bytes(1_000_000)


async def fill(store):
    while True:
        await store.txn([], [Put(KEY, bytes(100_000))])


async def test_a_full_etcd_is_read_only(start_etcd):
    etcd = start_etcd("--quota-backend-bytes", "2000000").wait()
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        with pytest.raises(StoreError, match="space"):
            await fill(store)
        assert store.health.state is StoreState.READ_ONLY
        await store.get(KEY)
        assert store.health.state is StoreState.READ_ONLY


@pytest.fixture
def patient(monkeypatch):
    """Requests may take as long as they do without tests: etcd hashes a password for a good part of a second."""
    monkeypatch.setattr(etcd_gateway, "REQUEST_S", REQUEST_S)


def make_users(etcd):
    """A user who may use the keys below /tailrace/ only, and authentication."""
    for path, body in [
        ("auth/user/add", {"name": "root", "password": "r"}),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/user/add", {"name": "node", "password": "right"}),
        ("auth/role/add", {"name": "tailrace"}),
        (
            "auth/role/grant",
            {
                "name": "tailrace",
                "perm": {"permType": "READWRITE", "key": encode("/tailrace/"), "range_end": encode("/tailrace0")},
            },
        ),
        ("auth/user/grant", {"user": "node", "role": "tailrace"}),
        ("auth/enable", {}),
    ]:
        status, answer = etcd.ask(path, body)
        assert status == 200 or path == "auth/role/add", (path, answer)


async def test_a_user_with_a_password_whose_token_is_renewed(start_etcd, tmp_path, patient):
    etcd = start_etcd().wait()
    make_users(etcd)
    secret = tmp_path / "password"
    secret.write_text("right\n")
    async with etcd_store(f"etcd://node@{etcd.endpoint}?password_file={secret}") as store:
        assert await store.txn([], [Put("/tailrace/a", b"1")])
        store.gateway._token = "old.1"  # as one that has expired
        assert (await store.get("/tailrace/a")).value == b"1"
        assert store.gateway._token != "old.1"
        store.gateway._token = "old.1"
        assert await store.txn([], [Put("/tailrace/a", b"2")])
        async with store.watch("/tailrace/") as watch:
            assert (await watch.next()).entries["/tailrace/a"].value == b"2"
            etcd.stop()
            etcd.start().wait()
            store.gateway._token = "old.1"
            await store.txn([], [Put("/tailrace/a", b"3")])
            assert (await watch.next()).entries["/tailrace/a"].value == b"3"
        with pytest.raises(StoreRefused, match="permission denied"):
            await store.get("/other")
        assert store.health.state is StoreState.REFUSED
        await store.get("/tailrace/a")
        assert store.health.state is StoreState.CONNECTED


async def test_a_user_or_password_that_is_refused(start_etcd, tmp_path, patient):
    etcd = start_etcd().wait()
    make_users(etcd)
    secret = tmp_path / "password"
    secret.write_text("wrong")
    async with etcd_store(f"etcd://node@{etcd.endpoint}?password_file={secret}") as store:
        with pytest.raises(StoreRefused, match="user 'node' is refused"):
            await store.get("/tailrace/a")
        assert store.health.state is StoreState.REFUSED
        secret.write_text("right")
        await store.get("/tailrace/a")
        assert store.health.state is StoreState.CONNECTED
    async with etcd_store(f"etcd://{etcd.endpoint}") as store:
        with pytest.raises(StoreRefused):
            await store.get("/tailrace/a")
    async with etcd_store(f"etcd://node@{etcd.endpoint}?password_file={tmp_path}/none") as store:
        with pytest.raises(StoreRefused, match="none cannot be read"):
            await store.get("/tailrace/a")


@pytest.fixture
def certificates(tmp_path):
    """Files of an authority, of etcd's certificate, and of a node's, by name."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: apt-get install openssl")
    made = tmp_path / "tls"
    made.mkdir()

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=made, check=True, capture_output=True)

    for name in ("ca", "other"):
        new = ("-newkey", "rsa:2048", "-nodes", "-days", "1")
        openssl("req", "-x509", *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (made / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("etcd", "node"):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return made


async def ask_until_refused(store):
    while True:
        with contextlib.suppress(StoreUnreachable):  # etcd may reset the connection before its alert is read
            await store.get(KEY)


async def test_tls_with_certificates_on_both_sides(start_etcd, certificates):
    files = ("--cert-file", "etcd.pem", "--key-file", "etcd.key", "--trusted-ca-file", "ca.pem")
    paths = [text if text.startswith("-") else str(certificates / text) for text in files]
    etcd = start_etcd(*paths, "--client-cert-auth", scheme="https")
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "node.pem", certificates / "node.key")
    while True:
        try:
            etcd.ask("kv/range", {"key": "YQ=="}, context)
            break
        except OSError:
            await trio.sleep(0.05)
    url = f"etcds://{etcd.endpoint}?ca={certificates}/ca.pem"
    async with etcd_store(f"{url}&cert={certificates}/node.pem&key={certificates}/node.key") as store:
        await store.txn([], [Put(KEY, b"1")])
        async with store.watch("/test/") as watch:
            assert (await watch.next()).entries[KEY].value == b"1"
    for wrong in (url, f"etcds://{etcd.endpoint}?ca={certificates}/other.pem"):
        async with etcd_store(wrong) as store:
            with pytest.raises(StoreRefused, match="TLS"):
                await ask_until_refused(store)
            assert store.health.state is StoreState.REFUSED
    with pytest.raises(StoreRefused, match="certificates"):
        async with etcd_store(f"etcds://{etcd.endpoint}?ca={certificates}/none.pem"):
            pass
