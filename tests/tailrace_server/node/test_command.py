"""``tailrace serve`` as a process: the ready line, its doors, how it ends, what it says when it cannot start.

Tests of a start itself run the installed command, the others forks of one process that run the same command: a start
costs a second of processor time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from tests.processes.forks import COMMAND, Fork

import tailrace
from tailrace.cli.commands import run
from tailrace.link.address import Address
from tailrace.testing.ports import free_port, free_port_before
from tailrace_server.config import Config
from tailrace_server.coordination.cluster_keys import Voter, Voters, format_to_bytes, voters_to_bytes
from tailrace_server.coordination.coordinator import Put
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.host.disk import RealDisk
from tailrace_server.node import command
from tailrace_server.node.start import prepare
from tailrace_server.runtime.host import Host

pytestmark = pytest.mark.slow

TAILRACE = Path(sys.executable).with_name("tailrace")
READY = re.compile(r"tailrace: ready, frames on (\S+), http on (\S+), ws on (\S+)\n")
SECONDS_MAX = 120
ANY_PORTS = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ws", "127.0.0.1:0")


class Server:
    """A process that serves."""

    def __init__(self, process):
        self.process = process
        line = process.stdout.readline()
        self.frames, self.http, self.ws = READY.fullmatch(line).groups()

    @property
    def url(self):
        return f"tailrace://{self.frames}"

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=SECONDS_MAX) as answer:
            return answer.read()

    def end(self, number):
        """Sends a signal; exit code and what was logged."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, errors


class ForkedServer(Server):
    """A fork that serves, and the file that it logs to."""

    def __init__(self, process, errors):
        self.process = process
        self.errors = errors
        self.frames, self.http, self.ws = READY.fullmatch(process.stdout.readline().decode()).groups()

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(SECONDS_MAX)
        self.errors.seek(0)
        return code, self.errors.read().decode()


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@contextmanager
def popen(*arguments, **settings):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **settings}
    with subprocess.Popen([TAILRACE, "serve", *map(str, arguments)], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def starting(data, *arguments, **settings):
    """A node that the installed command serves."""
    with popen("--data", data, *ANY_PORTS, *arguments, **settings) as process:
        yield Server(process)


@contextmanager
def serving(data, *arguments):
    """A node that a fork serves, by the same command."""
    command = ["serve", "--data", *map(str, (data, *ANY_PORTS, *arguments))]
    with tempfile.TemporaryFile() as errors:
        process = Fork(COMMAND, command, Path.cwd(), errors)
        try:
            yield ForkedServer(process, errors)
        finally:
            process.kill()
            process.finish()


def failing(*arguments):
    """Exit code and the lines on stderr of a start that must not succeed."""
    with tempfile.TemporaryFile() as errors:
        process = Fork(COMMAND, ["serve", *map(str, arguments)], Path.cwd(), errors)
        try:
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
        assert process.finish() == b""
        errors.seek(0)
        return process.wait(), errors.read().decode().splitlines()


def use(url, work, **options):
    async def connected():
        async with tailrace.connect(url, **options) as client:
            return await work(client)

    return trio.run(connected)


def put(url, key, value):
    async def work(client):
        await (await client.create_feed("orders", partitions=2)).put(key, value)

    use(url, work)


def get(url, key):
    async def work(client):
        return (await client.feed("orders").get(key)).value

    return use(url, work)


def test_every_door_answers_once_it_is_ready(data):
    with starting(data) as server:
        put(server.url, b"k", b"v")
        assert json.loads(server.get("/healthz")) == {"healthy": True, "failure": None}
        assert json.loads(server.get("/readyz")) == {"ready": True, "role": "leader", "failure": None}
        assert b"tailrace_ready 1.0" in server.get("/metrics")
        assert json.loads(server.get("/api/status"))["feeds"][0]["name"] == "orders"
        host, port = server.ws.split(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as sock:
            sock.sendall(
                b"GET /feeds/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert sock.recv(12) == b"HTTP/1.1 101"


def test_a_service_manager_is_told_that_it_is_ready_and_that_it_stops(data, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SECONDS_MAX)
        with starting(data, env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert manager.recv(100) == b"READY=1"
            assert server.get("/healthz")
            server.end(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_starts_again(data, number):
    with starting(data) as server:
        put(server.url, b"k", b"v")
        code, errors = server.end(number)
    assert code == 0
    assert "Traceback" not in errors
    with serving(data) as server:
        assert get(server.url, b"k") == b"v"
        status = json.loads(server.get("/api/status"))
        assert status["unclean_start"] is None
        assert status["feeds"][0]["terms"] == [1, 1]


def test_a_stop_waits_for_nobody(data):
    with serving(data) as server:
        put(server.url, b"k", b"v")
        idle = []
        for door in (server.frames, server.http, server.ws):
            host, port = door.split(":")
            idle.append(socket.create_connection((host, int(port))))
        assert server.end(signal.SIGTERM)[0] == 0
        for sock in idle:
            sock.close()


def test_what_was_acknowledged_survives_sigkill(data):
    with serving(data) as server:
        put(server.url, b"k", b"v")
        assert server.end(signal.SIGKILL)[0] == -signal.SIGKILL
    with serving(data) as server:
        assert get(server.url, b"k") == b"v"
        assert json.loads(server.get("/api/status"))["unclean_start"] is not None


def test_doors_can_stay_shut(data):
    with serving(data, "--listen", ":0", "--http", "off", "--ws", "") as server:
        assert (server.http, server.ws) == ("off", "off")
        put(server.url, b"k", b"v")


def test_pages_of_named_origins_may_use_the_websocket(data):
    with serving(data, "--ws-origin", "https://a.example", "--ws-origin", "https://b.example") as server:
        host, port = server.ws.split(":")
        answers = []
        for origin in (b"https://b.example", b"https://c.example"):
            with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as sock:
                sock.sendall(
                    b"GET /feeds/x HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: "
                    + origin
                    + b"\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                )
                answers.append(sock.recv(12))
    assert answers == [b"HTTP/1.1 101", b"HTTP/1.1 403"]


def test_names_that_a_proxy_passes_on_may_be_allowed(data):
    with serving(data, "--allow-host", "A.example", "--allow-host", "b.example") as server:
        answers = []
        for address in (server.http, server.ws):
            host, port = address.split(":")
            for name in (b"a.example", b"b.example:443", b"c.example"):
                with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as sock:
                    sock.sendall(
                        b"GET /feeds/x HTTP/1.1\r\nHost: " + name + b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                    )
                    answers.append(sock.recv(12)[9:])
    assert answers == [b"403", b"403", b"421", b"101", b"101", b"421"]


def test_a_second_process_is_turned_away(data):
    with serving(data) as server:
        code, [line] = failing("--data", data, "--listen", ":0", "--http", "off", "--ws", "off")
        assert code == 1
        assert f"is in use by process {server.process.pid}" in line


@pytest.mark.parametrize("option", ["--listen", "--http", "--ws"])
def test_an_address_in_use_is_named(data, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        doors = {"--listen": ":0", "--http": "off", "--ws": "off", option: address}
        code, lines = failing(
            "--data", data, "--log-level", "error", *(word for pair in doors.items() for word in pair)
        )
    assert (code, lines) == (1, [f"tailrace: cannot serve: {option} {address}: Address already in use"])


def test_a_start_that_fails_leaves_the_directory_clean(data):
    with serving(data) as server:
        put(server.url, b"k", b"v")
        server.end(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failing("--data", data, "--listen", ":0", "--http", f":{taken.getsockname()[1]}", "--ws", "off")
    with serving(data) as server:
        assert json.loads(server.get("/api/status"))["unclean_start"] is None


def test_a_damaged_journal_is_not_served(data):
    with serving(data) as server:
        for number in range(3):
            put(server.url, b"k", b"v%d" % number)
        server.end(signal.SIGTERM)
    [journal] = (data / "journal").glob("[0-9]*")
    content = bytearray(journal.read_bytes())
    place = content.index(b"v0")
    content[place] ^= 1
    journal.write_bytes(content)
    code, [line] = failing("--data", data, "--listen", ":0", "--http", "off", "--ws", "off")
    assert code == 1
    assert line.startswith("tailrace: the journal is damaged: ")
    assert f"`tailrace verify {data}`" in line
    assert f"`tailrace repair {data}`" in line
    assert str(journal) in line


def test_a_damaged_identity_is_not_served(data):
    data.mkdir()
    (data / "NODE").write_text("{}")
    code, [line] = failing("--data", data, "--listen", ":0")
    assert code == 1
    assert f"{data}/NODE is damaged" in line


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    code, [line] = failing("--data", tmp_path / "file" / "data", "--listen", ":0")
    assert code == 1
    assert line.startswith("tailrace: cannot serve: ")
    assert str(tmp_path / "file") in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--data"),
        (["--data", "x", "--listen", "off"], "--listen cannot be off"),
        (["--data", "x", "--http", "host:port"], "--http: 'host:port' is no address"),
        (["--data", "x", "--ws", ":99999"], "--ws: "),
        (["--data", "x", "--log-level", "loud"], "--log-level"),
        (["--data", "x", "surplus"], "surplus"),
        (["--data", "x", "--cluster-store", "zk://a"], "'zk://a' is no coordinator"),
        (["--data", "x", "--cluster-store", "etcd://a", "--members", "b:1,c:1"], "leave out --members"),
        (["--data", "x", "--cluster-store", "etcd://a", "--listen", "0.0.0.0:1"], "name one address"),
        (["--data", "x", "--voters", "3"], "--voters is for sets of --cluster-store"),
    ],
)
def test_wrong_usage(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, [line] = failing(*arguments)
    assert code == 2
    assert says in line
    assert not list(tmp_path.iterdir())


def test_a_member_of_a_founded_set_starts_without_its_cluster_store(data):
    identity = prepare(Config(str(data)), Host())
    port = free_port()
    own = Voter(identity.placement_id, identity.node_id, Address("127.0.0.1", port))
    others = [Voter(bytes([n]) * 16, bytes([n]) * 16, Address("127.0.0.1", free_port())) for n in (1, 2)]
    known = [("format", format_to_bytes(identity.cluster_id)), ("voters", voters_to_bytes(Voters(1, (*others, own))))]
    StaticStore(RealDisk(), f"{data}/CLUSTER").write([], [Put(name, value) for name, value in known])
    options = ["--listen", f"127.0.0.1:{port}", "--cluster-store", f"etcd://127.0.0.1:{free_port()}"]
    with serving(data, *options) as server:
        status = json.loads(server.get("/api/status"))
        assert status["cluster_store"]["state"] in ("connecting", "unreachable")
        assert status["replication"]["members"] == [str(voter.name) for voter in (*others, own)]
        assert status["unclean_start"] is None, "the directory is new"
        assert server.end(signal.SIGTERM)[0] == 0
    (data / "MEMBERSHIP").write_text("{}")
    code, lines = failing("--data", data, *options)
    assert code == 1
    assert f"{data}/MEMBERSHIP is damaged" in lines[-1]
    (data / "CLUSTER").write_text("{}")
    code, [line] = failing("--data", data, *options)
    assert code == 1
    assert f"{data}/CLUSTER is damaged" in line


def test_the_client_of_a_cluster_store_is_loaded_only_for_one():
    loads = "import sys, tailrace_server.node.command; sys.exit('httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loads], timeout=SECONDS_MAX).returncode == 0


def test_a_file_the_environment_and_options_set_it_up(data, tmp_path):
    file = tmp_path / "tailrace.toml"
    file.write_text(f'data = "{data}"\nlisten = ":0"\nhttp = ":0"\nws = "off"\n[limits]\nfeeds_max = 1\n')
    environ = {**os.environ, "TAILRACE_WS": ":0", "TAILRACE_CONFIG": str(file), "TAILRACE_LIMITS_PARTITIONS_MAX": "2"}
    with popen("--http", "off", env=environ) as process:
        server = Server(process)
        assert (server.http, server.ws == "off") == ("off", False)
        put(server.url, b"k", b"v")

        async def another(client):
            with pytest.raises(tailrace.TailraceError, match="3 partitions; 1 to 2"):
                await client.create_feed("more", partitions=3)
            with pytest.raises(tailrace.TailraceError, match="1 feeds"):
                await client.create_feed("more", partitions=1)

        use(server.url, another, retry_for=1)  # an operator may raise the limit, so it is asked again


def test_settings_are_read_again_on_sighup(data, tmp_path):
    file = tmp_path / "tailrace.toml"
    file.write_text("[limits]\nfeeds_max = 1\n")
    with starting(data, "--config", file, "--log-format", "json", stdin=subprocess.DEVNULL) as server:
        put(server.url, b"k", b"v")
        file.write_text("[limits]\nfeeds_max = 2\n[storage]\njournal_file_bytes_max = '8 MiB'\n")
        server.process.send_signal(signal.SIGHUP)
        events = []
        while len(events) < 2:
            event = json.loads(server.process.stderr.readline())
            events += [event] if event["message"].startswith("setting") else []
        assert [(event["level"], event["message"]) for event in events] == [
            ("info", "setting limits.feeds_max was 1, and is 2"),
            ("warning", "setting storage.journal_file_bytes_max has changed: restart the node to use it"),
        ]

        async def another(client):
            await client.create_feed("more", partitions=1)

        use(server.url, another)
        code, errors = server.end(signal.SIGTERM)
        assert code == 0
        assert json.loads(errors.splitlines()[-1])["message"] == "stopping: SIGTERM"


def test_it_does_not_start_with_a_wrong_setting(data, tmp_path):
    file = tmp_path / "tailrace.toml"
    file.write_text("[limits]\nfeeds_mx = 1\nstreams_max = 0\n")
    code, lines = failing("--data", data, "--config", file)
    assert code == 2
    assert lines == [
        f"tailrace: {file}:3: limits.streams_max is 0, and has to be 1 or more",
        f"tailrace: {file}:2: limits.feeds_mx is no setting; did you mean limits.feeds_max?",
    ]
    assert failing("--data", data, "--config", tmp_path / "none") == (
        1,
        [f"tailrace: --config {tmp_path}/none: No such file or directory"],
    )
    assert not data.exists()


def test_a_set_on_one_machine_starts_as_the_guide_prints_it(tmp_path):
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "replication.md").read_text()
    lines = re.findall(r"^    \$ tailrace serve (--data set-.*)$", guide, re.M)
    assert len(lines) == 3
    with contextlib.ExitStack() as stack:
        servers = []
        # The others are the next ones, as in the guide; HTTP and WebSocket of each are 80 and 90 above it.
        first = free_port_before([node + listener for node in range(3) for listener in (0, 80, 90)])
        ports = {str(4701 + number): str(first + number) for number in range(3)}
        for line in lines:
            arguments = re.sub(r"\b470[123]\b", lambda match: ports[match[0]], line).split()
            servers.append(Server(stack.enter_context(popen(*arguments, cwd=tmp_path))))
        put(",".join([servers[0].url, *(server.frames for server in servers[1:])]), b"k", b"v")
        assert len({port for server in servers for port in (server.frames, server.http, server.ws)}) == 9


def test_a_signal_before_it_is_ready_gives_up_the_start(data):
    for delay_ms in (200, 300, 400, 500):  # somewhere in the start, wherever that is on this machine
        ports = ["--listen", ":0", "--http", ":0", "--ws", ":0"]
        with popen("--data", data, *ports) as process:
            time.sleep(delay_ms / 1000)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=SECONDS_MAX)
            # By the signal itself only where Python has not come to the command yet.
            assert process.returncode in (0, -signal.SIGTERM)
            assert "Traceback" not in errors


def test_it_does_not_run_out_of_descriptors_at_the_usual_limit(data):
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    with starting(data, preexec_fn=lower) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert int(line.split()[3]) == min(12_000, hard if hard >= 0 else 12_000)


def test_what_reads_the_ready_line_may_go_away(data):
    with starting(data, stderr=subprocess.DEVNULL) as server:
        server.process.stdout.close()
        put(server.url, b"k", b"v")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS_MAX) == 0


@pytest.mark.parametrize(
    ("code", "told"),
    [(errno.ENOSPC, "No space left on device"), (errno.EIO, "Input/output error: see to the disk")],
)
def test_a_full_disk_or_a_broken_one_is_told_with_the_directory(code, told, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.pwrite", fail)
    monkeypatch.setattr(command, "set_up_logs", lambda *_: None)  # of this process
    assert run(["serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--http", "off", "--ws", "off"]) == 1
    assert capsys.readouterr().err == f"tailrace: cannot serve: {tmp_path}: {told}\n"
