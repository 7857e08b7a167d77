"""A PostgreSQL server of the tests: an own process, an own folder, a socket of Unix and no port."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

INSTALL = "apt-get install postgresql"
START_S = 60.0


def bin_folder():
    """Returns the folder of the server's programs; None if it is not installed."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return folders[-1].parent if folders else None


class PostgresServer:
    """A server over an empty database. Root may not run one, so it runs as ``nobody`` then."""

    def __init__(self):
        self._bin = bin_folder()
        if self._bin is None:
            pytest.skip(f"needs PostgreSQL: {INSTALL}")
        self._as = {"user": "nobody"} if os.getuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-pg-"))
        user = self._as.get("user")
        if user is not None:
            shutil.chown(self.folder, user)
        self.user = user or pwd.getpwuid(os.getuid()).pw_name
        self.conninfo = f"host={self.folder} user={self.user} dbname=postgres connect_timeout=20"
        self._process = None

    def _run(self, program, *arguments):
        command = [str(self._bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.folder, **self._as)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make(self):
        """Makes the data directory."""
        self._run("initdb", "-D", "data", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        return self

    def start(self):
        """Starts the server, and waits until it answers."""
        options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off")
        with open(self.folder / "log", "ab") as log:
            command = [str(self._bin / "postgres"), "-D", "data", *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._as)
        import psycopg

        gives_up_at = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return self
            except psycopg.OperationalError:
                if time.monotonic() > gives_up_at or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self):
        """Ends all connections and the server, as an operator does who is in a hurry."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def keep(self):
        """Copies the data, while it is stopped, for `put_back`."""
        self._run("/bin/cp", "-a", "data", "kept")

    def put_back(self):
        """Has it go back to the copy that `keep` has made, while it is stopped."""
        shutil.rmtree(self.folder / "data")
        (self.folder / "kept").rename(self.folder / "data")

    def remove(self):
        """Stops it, and removes its folder."""
        self.stop()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def postgres_server():
    """Runs a server while the body does."""
    server = PostgresServer()
    try:
        yield server.make().start()
    finally:
        server.remove()
