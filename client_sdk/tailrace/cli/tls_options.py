"""The options of TLS, which every command that uses a node has."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from tailrace.cli.errors import WrongUsage
from tailrace.link.address import NodeUrl
from tailrace.tls.context import NO_FILES, TlsFiles, client_context
from tailrace.trio.host import Host, layered
from tailrace.trio.transport import Connect

T = TypeVar("T")

# Contains the files of the command that runs.
_files: contextvars.ContextVar[TlsFiles] = contextvars.ContextVar("tls_files", default=NO_FILES)

Ca = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="TAILRACE_TLS_CA",
        metavar="FILE",
        help="For TLS: the authorities of the nodes' certificates, in PEM; by default the machine's.",
        show_default=False,
    ),
]
Cert = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        envvar="TAILRACE_TLS_CLIENT_CERT",
        metavar="FILE",
        help="For TLS: a certificate to show to the nodes, in PEM.",
        show_default=False,
    ),
]
Key = Annotated[
    str,
    typer.Option(
        "--tls-key",
        envvar="TAILRACE_TLS_CLIENT_KEY",
        metavar="FILE",
        help="The private key of --tls-cert; by default it is in the same file.",
        show_default=False,
    ),
]


def uses_node(command: Callable[..., T]) -> Callable[..., T]:
    """Adds the options of TLS to a command. `files` has their values while it runs."""

    @functools.wraps(command)
    def run(*args: object, tls_ca: str = "", tls_cert: str = "", tls_key: str = "", **others: object) -> T:
        before = _files.set(TlsFiles(tls_ca, tls_cert, tls_key))
        try:
            return command(*args, **others)
        finally:
            _files.reset(before)

    signature = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default="", annotation=annotation)
        for name, annotation in (("tls_ca", Ca), ("tls_cert", Cert), ("tls_key", Key))
    ]
    parameters = [*signature.parameters.values(), *added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def files() -> TlsFiles:
    """Returns the files that the options of the present command name."""
    return _files.get()


def connect_to(nodes: NodeUrl) -> Connect:
    """Returns what makes connections to ``nodes`` by frames. Raises WrongUsage for WebSocket, and for bad files."""
    if nodes.tunnel is not None:
        raise WrongUsage(
            "--url: this command goes to nodes by the addresses at which they know each other: use tailrace:// or "
            "tailraces://"
        )
    try:
        return layered(Host(), nodes.secure, None, client_context(files()) if nodes.secure else None).connect
    except ValueError as error:
        raise WrongUsage(f"TLS: {error}") from None
