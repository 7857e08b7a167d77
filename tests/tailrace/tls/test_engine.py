"""The engine of TLS: bytes in any pieces, garbage at any place, and certificates."""

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace.tls.key_updates import ClientRecords, log_keys

from tailrace.tls.engine import (
    CONTROL_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    RECORDS_MAX,
    SLICE_BYTES_MAX,
    TlsEngine,
    looks_like_tls,
)


class Ends:
    """A client's and a server's engine, and the bytes between them."""

    def __init__(self, authority, *, client=None, server=None):
        self.client = TlsEngine(client or authority.client(), "127.0.0.1")
        self.server = TlsEngine(server or authority.listening())

    def shake(self):
        for _ in range(10):
            done = self.client.shake()
            self.server.feed(self.client.take())
            done = self.server.shake() and done
            self.client.feed(self.server.take())
            if done:
                return
        raise AssertionError("no handshake")


@pytest.fixture
def ends(authority):
    return Ends(authority)


def cut(data, places):
    places = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def shake_on(ends):
    """Whether the server comes to the end of its handshake."""
    for _ in range(5):
        if ends.server.shake():
            return True
        ends.client.feed(ends.server.take())
        ends.client.shake()
        ends.server.feed(ends.client.take() or b"\0")
    return False


CUTS = st.lists(st.integers(0, 2**20), max_size=6)


@given(CUTS, CUTS, st.binary(min_size=1, max_size=40_000), st.integers(1, 50_000))
def test_bytes_may_come_in_any_pieces(authority, handshake_cuts, cuts, data, nbytes_max):
    ends = Ends(authority)
    ends.client.shake()
    for piece in cut(ends.client.take(), handshake_cuts):
        ends.server.feed(piece)
        ends.server.shake()
    for piece in cut(ends.server.take(), handshake_cuts):
        ends.client.feed(piece)
        ends.client.shake()
    ends.server.feed(ends.client.take())
    assert ends.server.shake()
    ends.client.encrypt(data)
    found = b""
    for piece in cut(ends.client.take(), cuts):
        ends.server.feed(piece)
        while more := ends.server.decrypt(nbytes_max):
            found += more
    assert found == data


@pytest.mark.parametrize("first_bytes", [1, 5, 6, 1_000, 16_000, 20_000])
def test_fewer_bytes_than_asked_for_are_all_that_have_come(ends, first_bytes):
    """A client that waits at its socket for the rest would wait for ever, though OpenSSL has it."""
    ends.shake()
    data = bytes(range(256)) * 300
    ends.client.encrypt(data)
    sent = ends.client.take()
    ends.server.feed(sent[:first_bytes])
    found = ends.server.decrypt(2 * len(data))
    ends.server.feed(sent[first_bytes:])
    assert found + ends.server.decrypt(2 * len(data)) == data
    assert not ends.server.decrypt(1)


@pytest.mark.parametrize("count", [RECORDS_MAX // 2, RECORDS_MAX, 5 * RECORDS_MAX, 20 * RECORDS_MAX])
def test_it_tells_that_records_are_left(ends, count):
    ends.shake()
    for _ in range(count):
        ends.client.encrypt(b"x")
    ends.server.feed(ends.client.take())
    found = ends.server.decrypt(1_000_000)
    while ends.server.is_behind:
        assert ends.server.has_data or found == b"x" * count
        more = ends.server.decrypt(1_000_000)
        assert len(more) <= RECORDS_MAX
        found += more
    assert found == b"x" * count


@given(st.integers(0, 4_000), st.integers(1, 255))
def test_a_broken_handshake_is_never_complete(authority, place, change):
    ends = Ends(authority)
    ends.client.shake()
    data = bytearray(ends.client.take())
    data[5 + place % (len(data) - 5)] ^= change  # the version of the first record may be any
    ends.server.feed(bytes(data))
    with contextlib.suppress(ssl.SSLError):
        assert not shake_on(ends)


@given(st.binary(min_size=1, max_size=60_000), st.integers(0, 2**20), st.integers(1, 255), CUTS)
def test_nothing_behind_a_changed_byte_is_handed_over(authority, data, place, change, cuts):
    ends = Ends(authority)
    ends.shake()
    ends.client.encrypt(data)
    sent = bytearray(ends.client.take())
    sent[place % len(sent)] ^= change
    found = b""
    try:
        for piece in cut(bytes(sent), cuts):
            ends.server.feed(piece)
            while more := ends.server.decrypt(10_000):
                found += more
    except ssl.SSLError:
        ends.server.feed(b"more")
        with pytest.raises(ssl.SSLError):
            ends.server.decrypt(1)
    assert found != data
    assert data.startswith(found)


@given(st.binary(min_size=1, max_size=2_000))
def test_garbage_in_place_of_a_handshake(authority, garbage):
    server = TlsEngine(authority.listening())
    server.feed(garbage)
    with contextlib.suppress(ssl.SSLError):
        assert not server.shake()


def test_plaintext_before_the_failure_comes_first(ends):
    ends.shake()
    ends.client.encrypt(b"good")
    ends.server.feed(ends.client.take() + b"\x17\x03\x03\x00\x20" + bytes(32))
    assert ends.server.decrypt(100) == b"good"
    with pytest.raises(ssl.SSLError):
        ends.server.decrypt(100)


def test_into_buffers(ends):
    ends.shake()
    ends.client.encrypt(bytes(range(100)))
    ends.client.encrypt(b"tail")
    ends.server.feed(ends.client.take())
    body, head = memoryview(bytearray(50)), bytearray(52)
    assert ends.server.decrypt_into((body, head)) == 102
    assert bytes(body) + head == bytes(range(100)) + b"ta"
    assert ends.server.has_data
    assert ends.server.decrypt(10) == b"il"


def sent(ends, data):
    ends.client.encrypt(data)
    return ends.client.take()


def test_what_was_handed_over_does_not_change(ends):
    ends.shake()
    kept = []
    for number in range(8):
        ends.server.feed(sent(ends, bytes([number]) * SLICE_BYTES_MAX))
        kept.append(ends.server.decrypt_view(more=bytes))
        assert isinstance(kept[-1], memoryview)
        assert kept[-1].readonly
        kept.append(ends.server.decrypt_view())
    for number in range(8):
        whole = b"".join(kept[2 * number : 2 * number + 2])
        assert whole == bytes([number]) * len(whole)


def test_a_buffer_is_used_again_once_no_view_is_left(ends):
    ends.shake()

    def received():
        ends.server.feed(sent(ends, bytes(SLICE_BYTES_MAX)))
        found = ends.server.decrypt_view(more=bytes)
        while ends.server.decrypt(SLICE_BYTES_MAX):
            pass
        return found

    first = received()
    part, buffers = first[-1:], {id(first.obj)}
    del first
    for _ in range(10):
        buffers.add(id(received().obj))
    assert id(part.obj) in buffers
    assert 1 < len(buffers) <= 5


def test_a_little_keeps_no_buffer_in_memory(ends):
    ends.shake()
    for nbytes in (1, 20_000, SLICE_BYTES_MAX // 2 - 1):
        ends.server.feed(sent(ends, bytes(nbytes)))
        found = ends.server.decrypt_view(more=bytes)
        assert type(found) is bytes
        assert found == bytes(nbytes)


@pytest.mark.parametrize("way", ["view", "into"])
def test_more_is_taken_while_there_is_room(ends, way):
    ends.shake()
    data = bytes(range(256)) * 1_000
    ciphertext, room = sent(ends, data), bytearray(200_000 if way == "into" else 0)
    pieces = [ciphertext[start : start + 30_000] for start in range(0, len(ciphertext), 30_000)]
    ends.server.feed(pieces.pop(0))

    def more():
        return pieces.pop(0) if pieces else b""

    assert ends.server.decrypt_into((room,), more) == len(room)
    assert room == data[: len(room)]
    assert ends.server.decrypt_view(more=more) == data[len(room) :]
    assert not pieces


def test_a_close_notify_is_the_end(ends):
    ends.shake()
    ends.client.encrypt(b"last")
    ends.client.end()
    ends.server.feed(ends.client.take())
    assert (ends.server.decrypt(100), ends.server.decrypt(100), ends.server.is_ended) == (b"last", b"", True)


def test_a_handshake_without_end_is_bounded(authority):
    server = TlsEngine(authority.listening())

    def go_on():
        # A message of the handshake that says it has 16 MiB: OpenSSL refuses it, or the bound does.
        for _ in range(2 * HANDSHAKE_BYTES_MAX // 16_384 + 2):
            server.feed(b"\x16\x03\x01\x40\x00" + (b"\x01\xff\xff\xff" + bytes(16_380)))
            server.shake()

    with pytest.raises(ssl.SSLError):
        go_on()


@pytest.fixture
def updating(authority, tmp_path):
    """Two ends after their handshake, and the `ClientRecords` of the client."""
    ends = Ends(authority, client=log_keys(authority.client(), tmp_path / "keys"))
    ends.shake()
    return ends, ClientRecords(ends.client._object.cipher()[0], tmp_path / "keys")


def test_a_flood_of_key_updates_ends_the_connection(updating):
    """Each costs some 10 µs, and an answer of its own length, which waits in memory while the peer does not read."""
    ends, records = updating
    fed = 0

    def flood():
        nonlocal fed
        while fed < 10 * CONTROL_BYTES_MAX:
            update = records.key_update()
            fed += len(update)
            ends.server.feed(update)
            assert ends.server.decrypt(2**20) == b""

    with pytest.raises(ssl.SSLError, match="without data"):
        flood()
    assert len(ends.server.take()) <= fed <= CONTROL_BYTES_MAX + 100


def test_a_flood_into_buffers(updating):
    ends, records = updating
    place = bytearray(100)

    def flood():
        for _ in range(10 * CONTROL_BYTES_MAX // 27):
            ends.server.feed(records.key_update())
            assert ends.server.decrypt_into((place,)) == 0

    with pytest.raises(ssl.SSLError, match="without data"):
        flood()


def test_no_more_of_a_flood_is_taken(updating):
    """Each piece would hold the loop, though some data come with each."""
    ends, records = updating
    taken = []

    def more():
        taken.append(b"".join(records.key_update() for _ in range(CONTROL_BYTES_MAX // 20)) + records.data(b"x"))
        return taken[-1]

    ends.server.feed(records.data(b"first"))
    assert ends.server.decrypt_view(more=more) == b"firstx"
    assert len(taken) == 1
    with pytest.raises(ssl.SSLError, match="without data"):
        ends.server.decrypt(100)


def test_what_came_before_a_flood_is_handed_over(updating):
    ends, records = updating
    before = records.data(b"before")
    ends.server.feed(before + b"".join(records.key_update() for _ in range(CONTROL_BYTES_MAX // 25)))
    assert ends.server.decrypt(100) == b"before"
    with pytest.raises(ssl.SSLError, match="without data"):
        ends.server.decrypt(100)


def test_small_records_are_no_room_for_key_updates(updating):
    """However much data came before, a flood may not be longer."""
    ends, records = updating
    for _ in range(2 * RECORDS_MAX):
        ends.server.feed(records.data(b"x" * 16_000))
        assert len(ends.server.decrypt(2**20)) == 16_000
    ends.server.feed(b"".join(records.key_update() for _ in range(CONTROL_BYTES_MAX // 25)))
    with pytest.raises(ssl.SSLError, match="without data"):
        ends.server.decrypt(100)


def test_a_key_update_now_and_then_is_fine(updating):
    ends, records = updating
    for number in range(5_000):
        ends.server.feed(records.key_update() + records.data(b"%d" % number))
        assert ends.server.decrypt(100) == b"%d" % number
        ends.server.encrypt(b"answer")
        ends.client.feed(ends.server.take())
        assert ends.client.decrypt(100) == b"answer"


def test_the_certificate_of_the_peer(authority):
    context = authority.listening()
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_OPTIONAL
    ends = Ends(authority, client=authority.client(authority.issue("shop", "shop.example")), server=context)
    ends.shake()
    found = ends.server.peer_identity()
    assert "CN=shop" in found.subject
    assert found.names == ("shop.example",)
    assert len(found.authority) == 64
    assert found.authority == ends.client.peer_identity().authority
    without = Ends(authority, server=context)
    without.shake()
    assert without.server.peer_identity() is None


def test_the_versions(authority, ends):
    ends.shake()
    assert ends.server.version == "TLSv1.3"
    old = authority.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    ends = Ends(authority, client=old)
    ends.shake()
    assert ends.server.version == "TLSv1.2"


@pytest.mark.parametrize(
    ("data", "may_be"), [(b"\x16\x03\x01", True), (b"\x15", True), (b"\x16\x02", False), (b"GET", False), (b"", False)]
)
def test_the_first_bytes(data, may_be):
    assert looks_like_tls(data) == may_be
