"""``tailrace tls init``: files that a node and its clients can use at once."""

import stat

import pytest

import tailrace
from tailrace.cli.commands import run
from tailrace.tls import TlsFiles, client_context
from tailrace_server.config import Config, TlsConfig
from tailrace_server.node.start import open_node


@pytest.fixture
def made(tmp_path, capsys):
    folder = tmp_path / "certs"
    assert run(["tls", "init", str(folder), "--host", "db.example", "--host", "10.1.2.3"]) == 0
    return folder, capsys.readouterr().out


def test_the_files_and_what_comes_next(made):
    folder, out = made
    assert sorted(path.name for path in folder.iterdir()) == [
        *("ca.key", "ca.pem", "client.key", "client.pem", "node.key", "node.pem")
    ]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")}
    assert set(modes.values()) == {0o600}
    assert f"--tls-cert {folder}/node.pem --tls-key {folder}/node.key --tls-client-ca {folder}/ca.pem" in out
    assert f"--tls-ca {folder}/ca.pem" in out
    assert "db.example" in out


def test_nothing_is_overwritten(made, capsys):
    folder, _ = made
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(["tls", "init", str(folder)]) == 1
    assert "nothing is overwritten" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_bad_host(tmp_path, capsys):
    assert run(["tls", "init", str(tmp_path / "certs"), "--host", "a" * 70]) == 1
    assert "--host" in capsys.readouterr().err


async def test_a_node_and_a_client_use_them(made, tmp_path):
    folder, _ = made
    at = str(folder)
    tls = TlsConfig(f"{at}/node.pem", f"{at}/node.key", f"{at}/ca.pem", require_client_cert=True)
    config = Config(str(tmp_path / "data"), listen=("127.0.0.1", 0), http=None, ws=None, tls=tls)
    context = client_context(TlsFiles(f"{at}/ca.pem", f"{at}/client.pem", f"{at}/client.key"))
    async with open_node(config) as node:
        port = node.listening[1]
        for host in ("127.0.0.1", "localhost"):
            async with tailrace.connect(f"tailraces://{host}:{port}", tls=context) as client:
                status = (await client.status()).details["tls"]
        assert status["client_certificates"] == "required"
        assert 364 < status["expires_in_s"] / 86_400 <= 365
