import inspect
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import errors
from tailrace.errors import TailraceError
from tailrace.model import EndReason, Version, VersionRange
from tailrace.wire.failures import OutOfOrder, error_from_wire, error_to_wire
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import decode_error, encode_error

VERSION = Version(3, b"u" * 16, 17)
RANGE = VersionRange(3, b"u" * 16, 17, 20)

# The fields that errors have besides their message.
FIELDS = {
    errors.Unreachable: {"outcome": "unknown"},
    errors.NotLeader: {"leader": "b:4700"},
    errors.VersionConflict: {"current": VERSION},
    errors.WritesLost: {"ranges": (RANGE,)},
    errors.DataGone: {"first_seq": 12},
    errors.StreamEnded: {"reason": EndReason.PURGED},
    OutOfOrder: {"expected": 4},
}
# Only the kinds of the first are raised. The others are a client's own, and never sent.
NEVER_SENT = {errors.Retryable, errors.WrongProcess, errors.BadCopy, errors.IncompleteCopy, errors.BadValue}
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TailraceError)] + [
    OutOfOrder
]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NEVER_SENT], ids=lambda kind: kind.__name__)
def test_every_error_comes_out_as_it_went_in(kind):
    fields = FIELDS.get(kind, {})
    frame = FrameDecoder().receive_data(encode_error(kind("what was wrong", **fields), 9))[0]
    assert frame.id == 9
    found = decode_error(frame.body)
    assert type(found) is kind
    assert str(found) == "what was wrong"
    assert {name: getattr(found, name) for name in fields} == fields


def test_what_is_not_known_is_not_there():
    assert error_from_wire(error_to_wire(errors.VersionConflict("no"))).current is None
    assert error_from_wire(error_to_wire(errors.NotLeader("no"))).leader is None


def test_an_error_of_the_programs_own_travels_as_what_it_is_a_kind_of():
    class DiskOnFire(errors.NotDurable):
        pass

    assert type(error_from_wire(error_to_wire(DiskOnFire("help")))) is errors.NotDurable


def test_a_code_from_a_newer_peer_becomes_a_plain_error():
    found = error_from_wire({"code": "too_early", "message": "wait for noon"})
    assert type(found) is TailraceError
    assert str(found) == "wait for noon"
    assert str(error_from_wire({})) == "the peer gave no reason"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
codes = st.sampled_from(sorted(error_to_wire(kind("", **FIELDS.get(kind, {})))["code"] for kind in KINDS))
fields = st.sampled_from(["message", "current", "leader", "first_seq", "reason", "expected", "ranges", "outcome"])


@example("data_gone", {"first_seq": float("inf")})
@example("out_of_order", {"expected": float("nan")})
@given(codes, st.dictionaries(fields, json_values, max_size=4))
def test_a_hostile_error_is_an_error_all_the_same(code, values):
    found = decode_error(json.dumps({"code": code, **values}).encode())
    assert isinstance(found, TailraceError)
    str(found)
