"""Receiving by a transport that hands over no bytes by itself, as one of a simulator does."""

from __future__ import annotations

import pytest

from tailrace.trio.transport import receive_each


class Plain:
    """A transport of which only the bytes count: some for each ``receive``, and then the end or an error."""

    def __init__(self, *received, end=b""):
        self.left = list(received)
        self.end = end

    async def receive(self):
        if self.left:
            return self.left.pop(0)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def taker(enough=1 << 30):
    taken = []

    def take(data):
        taken.append(data)
        return len(taken) < enough

    return taken, take


async def test_bytes_are_handed_over_until_their_end():
    taken, take = taker()
    assert await receive_each(Plain(b"one", b"two"), take) is False
    assert taken == [b"one", b"two"]


async def test_a_taker_that_has_enough_leaves_the_rest():
    transport = Plain(b"one", b"two", b"three")
    taken, take = taker(enough=2)
    assert await receive_each(transport, take) is True
    assert taken == [b"one", b"two"]
    assert transport.left == [b"three"]


async def test_errors_are_the_callers():
    taken, take = taker()
    with pytest.raises(ConnectionResetError):
        await receive_each(Plain(b"one", end=ConnectionResetError()), take)
    assert taken == [b"one"]

    def refuse(data):
        raise ValueError(data)

    with pytest.raises(ValueError, match="bad"):
        await receive_each(Plain(b"bad"), refuse)


async def test_a_transport_that_hands_over_by_itself_is_asked_to():
    class Handing(Plain):
        async def receive_each(self, take):
            return take(b"by itself")

    taken, take = taker()
    assert await receive_each(Handing(b"one"), take) is True
    assert taken == [b"by itself"]
