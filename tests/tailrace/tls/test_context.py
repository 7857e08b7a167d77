"""Contexts from files: what is wrong with a file is told, and nothing of a key."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tailrace.tls.context import TlsFiles, client_context, context_for


def test_versions_and_renegotiation(authority):
    context = client_context(TlsFiles(authority.path))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.pem: No such file"):
        client_context(TlsFiles(str(tmp_path / "none.pem")))
    with pytest.raises(ValueError, match=r"No such file"):
        client_context(TlsFiles(cert=str(tmp_path / "none.pem")))


def test_a_file_that_has_none(tmp_path):
    path = tmp_path / "notes.pem"
    path.write_text("secret words")
    for files in (TlsFiles(str(path)), TlsFiles(cert=str(path))):
        with pytest.raises(ValueError, match=r"notes\.pem: no .* in PEM") as caught:
            client_context(files)
        assert "secret" not in str(caught.value)


def test_a_key_of_another_certificate(authority):
    with pytest.raises(ValueError, match="the key is not that of the certificate"):
        client_context(TlsFiles(cert=authority.issue("one"), key=authority.issue("two")))


def test_a_key_without_a_certificate(authority):
    with pytest.raises(ValueError, match="no certificate"):
        client_context(TlsFiles(key=authority.issue("one")))


def test_an_encrypted_key_is_refused_and_nothing_is_asked(tmp_path, authority):
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    path = tmp_path / "key.pem"
    path.write_bytes(key)
    with pytest.raises(ValueError, match="the private key is encrypted"):
        client_context(TlsFiles(cert=authority.issue("one"), key=str(path)))


def test_the_context_of_a_url(authority):
    context = authority.client()
    assert context_for(False, None) is None
    assert context_for(True, context) is context
    assert context_for(True, None).verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(ValueError, match="tailraces://"):
        context_for(False, context)
    with pytest.raises(TypeError, match="str"):
        context_for(True, "ca.pem")


def test_texts_in_place_of_files(authority, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ca, cert = Path(authority.path).read_text(), Path(authority.issue("one")).read_text()
    key = cert[: cert.index("-----BEGIN CERTIFICATE-----")]
    context = client_context(TlsFiles(ca, cert[len(key) :], key))
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(
        ValueError, match="the given text and the given text: the key is not that of the certificate"
    ) as caught:
        client_context(TlsFiles(cert=Path(authority.issue("two")).read_text(), key=key))
    assert key.splitlines()[1] not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
