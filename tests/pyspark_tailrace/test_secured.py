"""The sink and the source over TLS with a token: exactly once across the death of a leader, and no secret anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes.node import NodeProcess

from tailrace import blocking
from tailrace.testing.ports import free_ports
from tailrace.tls import TlsFiles, client_context

JOB = "tests.pyspark_tailrace.secured_job"
ROOT = Path(__file__).parents[2]
BATCHES = 4
ROWS = 500
SECONDS_MAX = 240.0


@contextlib.contextmanager
def secured_set(folder, authority):
    """Three nodes that speak TLS, require certificates and tokens, and fail over; gives them and the admin's token."""
    ports = free_ports(3)
    members = ",".join(f"127.0.0.1:{port}" for port in ports)
    secret = folder / "peer.token"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    tls = ["--tls-cert", authority.issue("node"), "--tls-client-ca", authority.path, "--tls-require-client-cert"]
    nodes = [
        NodeProcess(
            folder / f"node-{number}",
            port=port,
            options=["--members", members, "--auth", "--peer-token-file", str(secret), "--failover", "auto", *tls],
        )
        for number, port in enumerate(ports)
    ]
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(lambda node=node: node.is_running and node.kill())
            node.launch()
        for node in nodes:
            node.require_ready()
        yield nodes, until(lambda: admin_token(nodes))


def until(found):
    give_up = time.monotonic() + SECONDS_MAX
    while not (value := found()):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return value


def admin_token(nodes):
    paths = [node.data / "admin.token" for node in nodes]
    return next((text for path in paths if path.exists() and (text := path.read_text().strip())), None)


def leader_of(client, nodes):
    """The node that the client uses, if it leads."""
    told = client.status().details["replication"]
    others = {other["address"] for other in told["others"]}
    return next((node for node in nodes if told["role"] == "leader" and node.address not in others), None)


@pytest.mark.long
@pytest.mark.slow
def test_each_row_once_across_the_death_of_a_leader_and_no_secret_is_told(tmp_path, authority):
    (tmp_path / "in").mkdir()
    for number in range(BATCHES):
        keys = [b"%d-%d" % (number, row) for row in range(ROWS)]
        pq.write_table(pa.table({"key": keys, "value": [b"v" * 50] * ROWS}), tmp_path / "in" / f"{number}.parquet")
    cert = Path(authority.issue("spark")).read_text()
    begin = cert.index("-----BEGIN CERTIFICATE")
    key_text, cert_text = cert[:begin], cert[begin:]
    assert "PRIVATE" in key_text
    with secured_set(tmp_path, authority) as (nodes, admin):
        url = "tailraces://" + ",".join(node.address for node in nodes)
        context = client_context(TlsFiles(authority.path, authority.issue("operator")))
        with blocking.connect(url, token=admin, tls=context, retry_for=SECONDS_MAX, connect_timeout=60.0) as client:
            until(lambda: leader_of(client, nodes))
            token = client.create_token("spark", role="admin")
            unused = client.create_token("another", role="read", feeds=["none"])
            options = {
                "url": url,
                "feed": "orders",
                "token": token,
                "tls_ca": authority.path,
                "tls_cert": cert_text,
                "tls_key": key_text,
            }
            wrong = {
                "token": {"token": unused},
                "key": {"tls_key": key_text.replace("\n", "\nA", 2)},
                "address": {"url": "tailraces://127.0.0.1:9"},
            }
            spec = {"folder": str(tmp_path), "options": options, "wrong": wrong}
            log = tmp_path / "log"
            with log.open("wb") as out:
                job = subprocess.Popen(
                    [sys.executable, "-m", JOB, json.dumps(spec)],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=tmp_path,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                )
                try:
                    until(lambda: job.poll() is not None or first_rows(client))
                    leader = leader_of(client, nodes)
                    leader.kill()
                    assert job.wait(SECONDS_MAX) == 0, log.read_text()[-5_000:]
                finally:
                    job.kill()
                    job.wait()
    wanted = {f"{number}-{row}": 1 for number in range(BATCHES) for row in range(ROWS)}
    assert Counter(json.loads((tmp_path / "keys").read_text())) == wanted
    assert int((tmp_path / "count").read_text()) == len(wanted)
    told = [log, *(path for path in (tmp_path / "told").rglob("*") if path.is_file())]
    assert len(told) > 12
    hidden = {text.strip() for text in key_text.splitlines() if "-----" not in text and len(text) > 40}
    assert hidden
    found = [
        (path.name, what[:12])
        for path in told
        for what in (token, unused, admin, *hidden)
        if what in path.read_text(errors="replace")
    ]
    assert found == []
    # The search sees what it should: each wrong secret has its error, and the log and the plans are there.
    assert "Forbidden" in (tmp_path / "told" / "wrong token").read_text()
    assert "'tls_key'" in (tmp_path / "told" / "wrong key").read_text()
    assert "127.0.0.1:9" in (tmp_path / "told" / "wrong address").read_text()
    assert "orders" in "".join(path.read_text(errors="replace") for path in told)


def first_rows(client):
    with contextlib.suppress(Exception):
        return any(feed.name == "orders" for feed in client.feeds()) and client.feed("orders").get(b"0-0")
    return None
