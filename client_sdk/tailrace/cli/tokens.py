"""``tailrace token``: create, list and revoke tokens."""

from __future__ import annotations

import enum
import sys
from typing import Annotated, Any

import typer

from tailrace.cli.errors import WrongUsage
from tailrace.cli.options import DEFAULT_URL, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json, printable
from tailrace.cli.tls_options import uses_node
from tailrace.model import TokenInfo
from tailrace.model.times import parse_span, to_text
from tailrace.trio.client import Client

app = typer.Typer(help="Create, list and revoke tokens.", rich_markup_mode=None)


class RoleOption(enum.StrEnum):
    """The choices of --role."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    REPLICA = "replica"


TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The name of a token.", show_default=False)]


Role = Annotated[
    RoleOption,
    typer.Option(
        "--role",
        help="What the token permits: read; write, and read; admin: what an operator does; replica: what nodes do.",
        show_default=False,
    ),
]
Feeds = Annotated[
    list[str] | None,
    typer.Option("--feed", metavar="FEED", help="Only this feed. Can be repeated. Without it: all feeds."),
]
KeyPrefix = Annotated[
    str, typer.Option("--key-prefix", metavar="PREFIX", help="Only keys that begin with this.", show_default=False)
]
Lifetime = Annotated[
    str | None,
    typer.Option("--expires", metavar="SPAN", help="The token expires after this time: 90d, 12h, 30m or 10s."),
]
CertificateName = Annotated[
    str | None,
    typer.Option(
        "--certificate",
        metavar="NAME",
        help="The rights are those of a certificate: CN=..., DNS:..., URI:..., email:..., IP:... or SHA256:...",
        show_default=False,
    ),
]


@app.command()
@uses_node
def create(
    name: TokenName,
    role: Role,
    feed: Feeds = None,
    key_prefix: KeyPrefix = "",
    expires: Lifetime = None,
    certificate: CertificateName = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Create a token, and print it once. The nodes keep only a hash of it.

    \b
    Examples:
      tailrace token create shop --role write --feed orders --expires 90d
      tailrace token create billing --role read --certificate CN=billing
    """
    try:
        expires_s = None if expires is None else parse_span(expires)
    except ValueError as error:
        raise WrongUsage(f"--expires: {error}") from None

    async def work(client: Client) -> str:
        return await client.create_token(
            name,
            role=role.value,
            feeds=feed or (),
            key_prefix=key_prefix.encode(),
            expires_s=expires_s,
            certificate=certificate,
        )

    try:
        made = target("token create", url, node, token).call(work)
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    if json:
        print_json({"name": name} | ({"token": made} if certificate is None else {"certificate": certificate}))
    elif certificate is not None:
        print(f"clients that show a certificate {certificate} have the rights of {name}", file=sys.stderr)
    else:
        print(made)
        print(f"this is token {name}; it is not shown again", file=sys.stderr)


@app.command("list")
@uses_node
def list_tokens(json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """List all tokens, without their secrets."""
    infos = target("token list", url, node, token).call(Client.tokens)
    if json:
        for info in infos:
            print_json(_to_json(info))
    elif infos:
        columns = [
            (name, "left") for name in ("token", "role", "feeds", "key prefix", "certificate", "created", "expires")
        ]
        make_console().print(make_table("", columns, map(_to_row, infos)))
    else:
        print("there are no tokens; `tailrace token create NAME --role ROLE` creates one", file=sys.stderr)


@app.command()
@uses_node
def revoke(name: TokenName, url: Url = DEFAULT_URL, node: Node = None, token: Token = None, json: Json = False) -> None:
    """Revoke a token. Its connections end within a second, on all nodes."""

    async def work(client: Client) -> None:
        await client.revoke_token(name)

    target("token revoke", url, node, token).call(work)
    if json:
        print_json({"revoked": name})


def _to_json(info: TokenInfo) -> dict[str, Any]:
    return {**info._asdict(), "key_prefix": printable(info.key_prefix), "token_id": info.token_id.hex()}


def _to_row(info: TokenInfo) -> tuple[str, ...]:
    expires = "never" if info.expires_at is None else to_text(info.expires_at)
    feeds, prefix = ", ".join(info.feeds) or "all", printable(info.key_prefix) or "all"
    return info.name, info.role, feeds, prefix, info.certificate, to_text(info.created_at), expires
