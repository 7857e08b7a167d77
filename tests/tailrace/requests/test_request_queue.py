"""The queue of requests that are no writes: what is due, what is sent again, and what is given up."""

import pytest

from tailrace.errors import Overloaded, UnknownFeed, Unreachable
from tailrace.requests.request import PlainRequest, Sequence
from tailrace.requests.request_queue import RequestQueue
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode

ANSWER = Frame(Opcode.RESULT, 0, 1, memoryview(b""))


class Asked:
    """A queue, and the answers to its requests by name."""

    def __init__(self, *names, sequence=None):
        self.answers = {}
        self.queue = RequestQueue(lambda: 0.0, lambda: 1.0)
        self.by_name = {name: self.request(name, sequence) for name in names}

    def request(self, name, sequence):
        request = PlainRequest(
            lambda id: b"", lambda frame: name, lambda *answer: self.answers.update({name: answer}), deadline=10.0
        )
        request.sequence = sequence
        self.queue.add(request)
        return request

    def due(self, now):
        names = {request: name for name, request in self.by_name.items()}
        return [names[request] for request in self.queue.take_due(now)]

    def refuse(self, name, error, *, now=0.0, hold_until=1.0):
        self.queue.refused(self.by_name[name], error, now, hold_until)


def test_requests_are_due_once_in_order():
    asked = Asked("a", "b", "c")
    assert asked.due(0.0) == ["a", "b", "c"]
    assert asked.due(0.0) == []


def test_a_refused_request_is_due_again_before_later_ones():
    asked = Asked("a", "b")
    asked.due(0.0)
    asked.refuse("b", Overloaded("busy"))
    asked.refuse("a", Overloaded("busy"))
    assert asked.due(0.9) == []
    assert asked.due(1.0) == ["a", "b"]


def test_a_refusal_holds_the_requests_of_its_sequence():
    asked = Asked("a", "b", sequence=Sequence())
    assert asked.due(0.0) == ["a", "b"]
    asked.refuse("a", Overloaded("busy"), hold_until=0.0)
    held_until = asked.by_name["b"].sequence.hold_until
    assert held_until > 0.0
    asked.refuse("b", Overloaded("busy"), hold_until=0.0)
    assert asked.due(0.0) == []
    assert asked.due(held_until) == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "now"), [(UnknownFeed("dropped"), 0.0), (Overloaded("busy"), 10.0)], ids=["final", "too late"]
)
def test_a_refusal_that_no_try_helps_is_the_answer(error, now):
    asked = Asked("a")
    asked.due(0.0)
    asked.refuse("a", error, now=now)
    assert asked.answers == {"a": (None, error)}
    assert not asked.queue.requests


def test_an_answer_or_refusal_of_a_request_that_was_withdrawn_is_ignored():
    asked = Asked("a", "b")
    asked.due(0.0)
    for name, request in asked.by_name.items():
        asked.queue.withdraw(request)
        asked.queue.answered(request, ANSWER)
        asked.refuse(name, Overloaded("busy"))
    assert asked.answers == {}
    assert not asked.queue.unsent


def test_after_a_lost_link_the_unanswered_are_due_again_and_in_doubt():
    asked = Asked("a", "b")
    asked.due(0.0)
    asked.queue.answered(asked.by_name["a"], ANSWER)
    asked.queue.link_lost()
    assert asked.due(0.0) == ["b"]
    asked.queue.expire(10.0, Unreachable("cut"))
    (_, error) = asked.answers["b"]
    assert error.outcome == "unknown"
