"""The first admin token of a cluster: it creates the others.

    the file DIR/admin.token, durable ──> the row in ``_feeds``

A crash in between leaves a file with a token that does not count; the next start makes another one. It is made if no
token of role admin exists, by the node that leads ``_feeds``: once for a set. An operator who has lost or revoked all
admin tokens starts the node again.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError
from tailrace.model import TokenInfo
from tailrace.model.tokens import new_token
from tailrace_server.feeds.token_rows import TokenRecord
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.serving.services import Services

log = logging.getLogger("tailrace.server")

FILE_NAME = "admin.token"
NAME = "admin"
# How often a node of a set looks whether it leads, and a majority has its rows.
_LOOK_SECONDS = 0.5


async def keep_admin_token(node: Services) -> None:
    """Makes an admin token when this node leads and there is none, until the first has been seen; then returns."""
    if not node.config.auth:
        return
    while True:
        try:
            if make_admin_token(node):
                return
        except (TailraceError, OSError) as error:
            log.error("no admin token could be made: %s", error)
        await trio.sleep(_LOOK_SECONDS)


def make_admin_token(node: Services) -> bool:
    """Makes an admin token if this node leads and there is none. Returns whether there is one.

    Raises OSError (the file), SegmentDamaged, NoSpace, NotDurable.
    """
    leadership = node.leaderships.system
    if node.token_changes.tokens().has_role("admin"):
        return True
    if leadership.role is not Role.LEADER or leadership.refuses_writes:
        return False
    token, now_us = new_token(), node.clock.wall_us()
    path = os.path.join(node.config.data, FILE_NAME)
    write_secret(path, token.text)
    info = TokenInfo(_free_name(node), "admin", (), b"", now_us, None, token.token_id)
    node.token_changes.create(TokenRecord(info, token.secret_hash))
    log.warning("there was no admin token: token %r is in %s", info.name, path)
    return True


def _free_name(node: Services) -> str:
    tokens, number, name = node.token_changes.tokens(), 1, NAME
    while tokens.named(name) is not None:
        number += 1
        name = f"{NAME}-{number}"
    return name


def write_secret(path: str, text: str) -> None:
    """Replaces the file by one with ``text``, durably, that only its owner can read. OSError."""
    temporary = f"{path}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)  # the file of an earlier try may have been readable
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
