"""Prints the plan of a change of the members, and its progress until it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import trio

from tailrace.cli.errors import WrongUsage
from tailrace.cli.member_rows import POLL_SECONDS, Phase
from tailrace.cli.output import printable
from tailrace.errors import Retryable
from tailrace.link.address import parse_address
from tailrace.trio.client import Client


def member_name(address: str) -> str:
    """Returns an argument HOST:PORT as status names a member. Raises WrongUsage."""
    try:
        return str(parse_address(address))
    except ValueError as error:
        raise WrongUsage(f"HOST:PORT: {error}") from None


def print_plan(steps: Iterable[str], verdict: str) -> None:
    """Prints the numbered steps, and whether they are safe now."""
    for number, step in enumerate(steps, 1):
        print(f"{number}. {printable(step)}")
    print(printable(verdict))


async def follow(client: Client, phase_of: Callable[[dict[str, Any]], Phase]) -> None:
    """Prints each phase until one is the last. It goes on with the next leader if the leader is lost.

    ``phase_of`` returns the phase by the leader's status.
    """
    before = ""
    while True:
        try:
            phase = phase_of((await client.status()).details)
        except Retryable as error:
            phase = Phase(f"no leader answers: {error}")
        if phase.text != before:
            print(printable(phase.text), flush=True)
            before = phase.text
        if phase.is_over:
            return
        await trio.sleep(POLL_SECONDS)
