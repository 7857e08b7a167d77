"""``tailrace tls init``: makes an authority and certificates for a trial."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tailrace.cli.errors import CommandFailed

app = typer.Typer(help="Certificates for TLS.", no_args_is_help=True)

# A trial's: an operator's own authority renews sooner.
DAYS = 365
CA, NODE, CLIENT = "ca", "node", "client"
# Machines whose clocks are a little behind take new certificates, too.
_SKEW = datetime.timedelta(hours=1)


class Issued(NamedTuple):
    """A certificate and its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@app.callback()
def _group() -> None:
    """Certificates for TLS."""


@app.command("init")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory. It is made if it does not exist.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A host or address by which clients and other nodes reach a node. Can be repeated. localhost, "
            "127.0.0.1, ::1 and the name of this machine are always in the certificate.",
        ),
    ] = None,
) -> None:
    """Make an authority, and certificates of nodes and of a client, for a trial.

    They are valid for a year. The files of keys have mode 0600. No file is ever overwritten.

    \b
    Example:
      tailrace tls init certs --host db-1.example --host 10.0.0.1
    """
    names = list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname(), *(host or ())]))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_new(directory)
        authority = make_authority()
        _write(directory, CA, authority)
        _write(directory, NODE, issue(authority, "tailrace node", names, of_node=True))
        _write(directory, CLIENT, issue(authority, "tailrace client", [], of_node=False))
    except OSError as error:
        raise CommandFailed(f"{error.filename or directory}: {error.strerror or error}") from None
    except ValueError as error:
        raise CommandFailed(f"--host: {error}") from None
    _print_next(directory, names)


def _paths(directory: Path) -> list[Path]:
    return [directory / f"{name}.{kind}" for name in (CA, NODE, CLIENT) for kind in ("pem", "key")]


def _check_new(directory: Path) -> None:
    for path in _paths(directory):
        if path.exists():
            raise CommandFailed(f"{path} exists, and nothing is overwritten: name another directory")


def _print_next(directory: Path, names: list[str]) -> None:
    ca, node, client = (f"{directory}/{name}" for name in (CA, NODE, CLIENT))
    print(f"{directory}: an authority, a certificate of nodes for {', '.join(names)}, and a client's, for {DAYS} days.")
    print("Next:")
    print(f"  tailrace serve --data data --tls-cert {node}.pem --tls-key {node}.key --tls-client-ca {ca}.pem")
    print(f"  tailrace status --url tailraces://localhost:4700 --tls-ca {ca}.pem")
    print("If the node has --tls-require-client-cert, clients add")
    print(f"  --tls-cert {client}.pem --tls-key {client}.key")
    print(f"Keep {ca}.key where no other machine reads it: with it anyone makes certificates that your nodes take.")


def make_authority() -> Issued:
    """Makes an authority, whose certificate it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tailrace trial authority")
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Issued(_signed(builder.add_extension(_usage(of_authority=True), critical=True), key, key), key)


def issue(authority: Issued, name: str, hosts: list[str], *, of_node: bool) -> Issued:
    """Makes a certificate. One of a node is for ``hosts``, and also for its connections to others.

    Raises ValueError for a host that cannot be in a certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if of_node else [])]
    builder = (
        _builder(_name(name), authority.cert.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(of_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
    return Issued(_signed(builder, key, authority.key), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(of_signer, critical=False).sign(signer, hashes.SHA256())


def _usage(*, of_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not of_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=of_authority,
        crl_sign=of_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text.encode("idna").decode())


def _write(directory: Path, name: str, issued: Issued) -> None:
    key = issued.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(directory / f"{name}.key", key, 0o600)
    _write_new(directory / f"{name}.pem", issued.cert.public_bytes(serialization.Encoding.PEM), 0o644)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
