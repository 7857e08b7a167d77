import base64
import re
from pathlib import Path

import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.errors import BadPosition
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import ENTRIES_MAX, SEQ_MAX, FailoverLog
from tailrace.model.position import PARTITION_MAX, PREFIX, TEXT_CHARS_MAX, Position, Positions

DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "position.md"
CLUSTER, FEED = b"c" * 16, b"f" * 16
U, V = b"u" * 16, b"v" * 16
LOG = FailoverLog([(V, 2, 100), (U, 1, 0)])
SEQS = st.integers(0, SEQ_MAX)
IDS = st.binary(min_size=16, max_size=16)


@st.composite
def logs(draw):
    count = draw(st.integers(1, ENTRIES_MAX))
    few = st.sampled_from([bytes([number]) * 16 for number in range(ENTRIES_MAX)])
    branches = draw(st.lists(few | IDS, min_size=count, max_size=count, unique=True))
    bases = sorted(draw(st.sets(SEQS, min_size=count, max_size=count)), reverse=True)
    terms = sorted(draw(st.sets(st.integers(1, SEQ_MAX), min_size=count, max_size=count)), reverse=True)
    return FailoverLog(zip(branches, terms, bases, strict=True))


@st.composite
def positions_of_feeds(draw):
    shared = draw(st.lists(logs(), min_size=1, max_size=3))
    by_partition = {}
    for partition in draw(st.sets(st.integers(0, 40) | st.integers(0, PARTITION_MAX), max_size=12)):
        first, seq, last = sorted(draw(st.lists(SEQS, min_size=3, max_size=3)))
        if draw(st.booleans()):
            first = last = seq
        purge_seq = draw(st.none() | SEQS)
        by_partition[partition] = Position.at(draw(st.sampled_from(shared)), seq, first, last, purge_seq)
    return Positions(draw(IDS), draw(IDS), by_partition)


def some_positions():
    return Positions(CLUSTER, FEED, {0: Position.at(LOG, 120), 3: Position.at(LOG, 90, 80, 100, 95)})


def text_of(body):
    """A positions string around any body, with a right checksum."""
    data = body + xxhash.xxh3_64_intdigest(PREFIX.encode() + body).to_bytes(8, "little")
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def body_of(positions):
    encoded = str(positions).removeprefix(PREFIX)
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))[:-8]


class TestText:
    @given(positions_of_feeds())
    def test_there_and_back(self, positions):
        text = str(positions)
        assert re.fullmatch(r"trp1\.[A-Za-z0-9_-]+", text)
        again = Positions.parse(text)
        assert again == positions
        assert hash(again) == hash(positions)
        assert str(again) == text

    def test_white_space_around_it_does_not_matter(self):
        assert Positions.parse(f"\n {some_positions()} \n") == some_positions()

    def test_the_order_of_partitions_makes_no_difference(self):
        zero, three = some_positions()[0], some_positions()[3]
        assert str(Positions(CLUSTER, FEED, {3: three, 0: zero})) == str(some_positions())

    def test_a_shared_log_is_stored_once(self):
        many = Positions(CLUSTER, FEED, {partition: Position.at(LOG, 1000) for partition in range(1024)})
        assert len(str(many)) < 1024 * 6
        assert len({id(position.log) for position in Positions.parse(str(many)).values()}) == 1

    @settings(max_examples=examples(30))
    @given(positions_of_feeds(), st.data())
    def test_any_changed_character_is_refused(self, positions, data):
        text = str(positions)
        index = data.draw(st.integers(0, len(text) - 1))
        changed = data.draw(st.characters(exclude_characters=text[index]))
        with pytest.raises(BadPosition):
            Positions.parse(text[:index] + "~" + changed + text[index + 1 :])
        assume(not (changed.isspace() and index in (0, len(text) - 1)))
        with pytest.raises(BadPosition):
            Positions.parse(text[:index] + changed + text[index + 1 :])

    def test_any_flipped_bit_is_refused(self):
        text = str(some_positions())
        data = bytearray(base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "=="))
        for bit in range(len(data) * 8):
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BadPosition, match="damaged"):
                Positions.parse(PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("="))
            data[bit // 8] ^= 1 << bit % 8

    def test_any_cut_is_refused(self):
        text = str(some_positions())
        for length in range(len(text)):
            with pytest.raises(BadPosition):
                Positions.parse(text[:length])

    @given(st.binary(max_size=200))
    def test_any_body_under_a_right_checksum_is_read_or_refused(self, body):
        try:
            positions = Positions.parse(text_of(CLUSTER + FEED + body))
        except BadPosition:
            return
        assert body_of(positions) == CLUSTER + FEED + body

    @given(positions_of_feeds(), st.data())
    def test_any_changed_byte_under_a_right_checksum_is_read_or_refused(self, positions, data):
        body = bytearray(body_of(positions))
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        try:
            read = Positions.parse(text_of(bytes(body)))
        except BadPosition:
            return
        assert body_of(read) == body

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "is no positions string"),
            ("beginning", "is no positions string"),
            ("trp2.AAAA", "only version 1"),
            ("trp1", "only version 1"),
            ("trp1.", "damaged"),
            ("trp1.A", "damaged"),
            ("trp1.AAAA\u00e9", "damaged"),
            ("trp1.AAAA", "damaged or cut off"),
            ("trp1." + "A" * TEXT_CHARS_MAX, "over the bound"),
            (text_of(b""), "ends too early"),
            (text_of(CLUSTER + FEED + b"\0\0\0\0"), "1 bytes follow its end"),
            (text_of(CLUSTER + FEED + b"\xff" * 10), "more than 63 bits"),
            (text_of(CLUSTER + FEED + b"\0\0\x01\0\0\x05"), "breaks its format"),  # names a log that is not there
            (text_of(CLUSTER + FEED + b"\0\0\x80\0"), "the one form"),  # a 0 in two bytes
            (str(some_positions()) + "=", "the one form"),
        ],
    )
    def test_what_it_is_not_is_said(self, text, says):
        with pytest.raises(BadPosition, match=says):
            Positions.parse(text)

    def test_only_text_is_parsed(self):
        with pytest.raises(TypeError, match="not from bytes"):
            Positions.parse(str(some_positions()).encode())


class TestDocument:
    def test_the_worked_example_is_what_the_code_writes(self):
        text = DOCUMENT.read_text()
        hexadecimal = re.findall(r"^    ((?:[0-9a-f]{2} ?)+)  ", text, re.MULTILINE)
        data = bytes.fromhex(" ".join(hexadecimal))
        (example,) = re.findall(r"^    (trp1\.[A-Za-z0-9_-]+)$", text, re.MULTILINE)
        positions = Positions.parse(example)
        assert positions == Positions(
            bytes(range(16)),
            bytes(range(16, 32)),
            {0: Position.at(LOG, 300), 3: Position.at(FailoverLog(LOG[1:]), 90, 80, 100, 95)},
        )
        assert body_of(positions) == data[:-8]
        assert example == PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    def test_the_table_of_constants_is_the_codes(self):
        text = DOCUMENT.read_text()
        assert f"`{PREFIX}`" in text
        assert f"{TEXT_CHARS_MAX:,}" in text


class TestPositions:
    def test_it_is_a_mapping(self):
        positions = some_positions()
        assert (len(positions), list(positions), 3 in positions) == (2, [0, 3], True)
        assert positions[0].branch == V
        assert positions.seqs() == {0: 120, 3: 90}
        assert repr(positions) == f"<Positions of feed {FEED.hex()} at {{0: 120, 3: 90}}>"

    def test_it_never_changes(self):
        before = some_positions()
        after = before.with_position(0, Position.at(LOG, 130)).with_positions({7: Position.at(LOG, 1)}).without(3)
        assert before == some_positions()
        assert after.seqs() == {0: 130, 7: 1}
        assert after.without(99) == after

    def test_it_equals_its_like_only(self):
        positions = some_positions()
        assert positions != Positions(CLUSTER, b"g" * 16, positions)
        assert positions != Positions(b"d" * 16, FEED, positions)
        assert positions != dict(positions)

    def test_another_feed_is_refused(self):
        some_positions().require_feed(CLUSTER, FEED)
        with pytest.raises(BadPosition, match="another feed, or one that was dropped"):
            some_positions().require_feed(CLUSTER, b"g" * 16)
        with pytest.raises(BadPosition, match="belong to cluster"):
            some_positions().require_feed(b"d" * 16, FEED)

    @pytest.mark.parametrize(
        ("partition", "position", "says"),
        [
            (-1, Position.at(LOG, 5), "no id of a partition"),
            (PARTITION_MAX + 1, Position.at(LOG, 5), "no id of a partition"),
            (0, Position.at(LOG, 5, 6, 7), "cannot be in a snapshot"),
            (0, Position.at(LOG, SEQ_MAX + 1), "cannot be in a snapshot"),
            (0, Position.at(LOG, 5, purge_seq=-1), "no purge seq"),
            (0, Position(U, 5, 5, 5, None, LOG), "not the newest"),
            (0, Position.at(FailoverLog(), 5), "has no failover log"),
        ],
    )
    def test_a_position_that_contradicts_itself_is_refused(self, partition, position, says):
        with pytest.raises(ValueError, match=says):
            Positions(CLUSTER, FEED, {partition: position})
        with pytest.raises(ValueError, match=says):
            some_positions().with_position(partition, position)

    def test_the_beginning_needs_no_log(self):
        beginning = Positions(CLUSTER, FEED, {0: Position.at(FailoverLog(), 0)})
        assert Positions.parse(str(beginning)) == beginning

    def test_ids_are_16_bytes(self):
        with pytest.raises(ValueError, match="16 bytes each"):
            Positions(b"c", FEED)


def test_a_checkpoint_is_a_value():
    assert Checkpoint(some_positions()) == Checkpoint(some_positions())
