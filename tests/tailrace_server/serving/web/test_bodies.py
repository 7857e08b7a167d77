"""The bounds of bodies."""

import pytest
from starlette.requests import Request

import tailrace
from tailrace_server.serving.web.bodies import Bodies


def request_with(*parts, announced=None):
    """A request whose body comes in these parts."""
    headers = [] if announced is None else [(b"content-length", b"%d" % announced)]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return messages.pop(0)

    return Request({"type": "http", "headers": headers}, receive)


async def test_a_body_comes_in_parts():
    bodies = Bodies(10)
    async with bodies.read(request_with(b"12", b"345"), 5, "a value") as body:
        assert (body, bodies.nbytes) == (b"12345", 5)
    assert bodies.nbytes == 0


async def test_a_body_that_is_too_long():
    for request in (request_with(announced=6), request_with(b"123", b"456")):
        bodies = Bodies(10)
        with pytest.raises(tailrace.TooLarge, match="a value may have 5 bytes at most"):
            async with bodies.read(request, 5, "a value"):
                pass
        assert bodies.nbytes == 0


async def test_bodies_together_are_bounded():
    """A body that has come counts; one that is only announced does not, and is refused if there is no room for it."""
    bodies = Bodies(10)
    async with bodies.read(request_with(b"12345678", announced=8), 10, "a value"):
        for request in (request_with(b"123"), request_with(announced=3)):
            with pytest.raises(tailrace.Overloaded, match="have 8 bytes"):
                async with bodies.read(request, 10, "a value"):
                    pass
        async with bodies.read(request_with(b"12"), 10, "a value"):
            assert bodies.nbytes == 10
    assert bodies.nbytes == 0
