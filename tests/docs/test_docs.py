"""README and docs/ say what the code does: tables, examples in hexadecimal, programs, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import xxhash

import tailrace_server
from tailrace.block import Block
from tailrace.consuming.partition import TRANSITIONS
from tailrace.consuming.refetch import KEYS_MAX
from tailrace.consuming.resume import ResumeAction, ResumeState, decide
from tailrace.consuming.ring import RING_ROWS, RINGS_BYTES_MAX
from tailrace.consuming.stream_ends import FINAL
from tailrace.model import EndReason, Level, VersionRange
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog, ResumeReason, resume_point
from tailrace.model.position import Position
from tailrace.wire import (
    bodies,
    consumer_messages,
    failures,
    frames,
    messages,
    push_messages,
    replica_messages,
    segment_messages,
    stream_messages,
)
from tailrace.wire.bounds import REQUEST_BOUNDS
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Limits
from tailrace_server.state.producers import PRODUCERS_MAX, ProducerTable, ResendVerdict
from tailrace_server.stream.resume import answer_request

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PROTOCOL = DOCS / "protocol"
OVERVIEW = (PROTOCOL / "overview.md").read_text()
# The text of each message's page, by its name.
MESSAGES = {page.stem.upper(): page.read_text() for page in sorted((PROTOCOL / "messages").glob("*.md"))}
STREAMS = "".join((PROTOCOL / f"{name}.md").read_text() for name in ("streams", "rollback", "barriers", "writes"))
FRAME = (DOCS / "formats" / "frame.md").read_text()
OPERATIONS = (DOCS / "guides" / "operations.md").read_text()
TOUR = (DOCS / "internals" / "tour.md").read_text()
INVARIANTS = (DOCS / "internals" / "invariants.md").read_text()

U, V = b"u" * 16, b"v" * 16


def sections(text):
    """The text below each heading, by heading."""
    parts = re.split("^## ", text, flags=re.MULTILINE)[1:]
    return {heading: body for heading, _, body in (part.partition("\n") for part in parts)}


def tables(text):
    """The rows of each table, as lists of cells without marks of code; the heading is left out."""
    found = re.findall(r"^\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    return [
        [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for table in found
    ]


def fenced(text, language=""):
    """The contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def example_bytes(block):
    """The frame that an example shows: hexadecimal, with offsets and remarks, or a header and a body of JSON."""
    head, brace, rest = block.partition("{")
    lines = re.findall(r"^(?: *(\d+)  )?((?:[0-9a-f]{2} ?)+)(?:  .*)?$", head, re.MULTILINE)
    data = b""
    for offset, digits in lines:
        assert not offset or int(offset) == len(data)
        data += bytes.fromhex(digits)
    return data + (brace + rest).replace("\n", "").encode()


# Links


def slug(heading):
    """The anchor that a heading has on the pages of a forge."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name} links to {target}"


def test_every_page_is_reached_from_the_index():
    linked, left = set(), [DOCS / "index.md"]
    while left:
        page = left.pop()
        if page in linked:
            continue
        linked.add(page)
        text = page.read_text()
        targets = re.findall(r"\]\(([^)#\s]+\.md)", text)
        for tree in fenced(text, re.escape("{toctree}")):
            targets += [f"{line}.md" for line in tree.splitlines() if not line.startswith(":")]
        left += [target for name in targets if DOCS in (target := (page.parent / name).resolve()).parents]
    assert {page for page in PAGES if DOCS in page.parents} <= linked


@pytest.mark.parametrize("text", [TOUR, tailrace_server.__doc__], ids=["tour", "docstring"])
def test_files_that_are_named_are_there(text):
    roots = [ROOT, ROOT / "tests", *(ROOT / part for part in ("client_sdk/tailrace", "server/tailrace_server"))]
    names = set(re.findall(r"[\w/]+\.py\b", text))
    assert names
    for name in names:
        assert any((root / name).is_file() for root in roots), name


# docs/protocol


def test_the_table_of_opcodes_is_that_of_the_code():
    table = [(int(row[0], 16), re.sub(r"\[(\w+)\].*", r"\1", row[1])) for row in tables(OVERVIEW)[0]]
    assert table == [(opcode.value, opcode.name) for opcode in Opcode]


def test_every_opcode_has_its_page_with_its_number_and_an_example():
    assert MESSAGES.keys() == {opcode.name for opcode in Opcode}
    for opcode in Opcode:
        assert MESSAGES[opcode.name].startswith(f"# {opcode.name}\n")
        assert f"0x{opcode.value:02x}, " in MESSAGES[opcode.name]
        [example] = fenced(MESSAGES[opcode.name])
        [frame] = FrameDecoder().receive_data(example_bytes(example))
        assert frame.opcode is opcode


JSON_MESSAGES = {
    "HELLO": messages.Hello,
    "HELLO_OK": messages.HelloOk,
    "STREAM_REQUEST": stream_messages.StreamRequest,
    "STREAM_OK": stream_messages.StreamOk,
    "ROLLBACK": stream_messages.RollBack,
    "STREAM_END": stream_messages.StreamEnd,
    "PRODUCERS": replica_messages.Producers,
    "SEGMENT_DECLINE": push_messages.SegmentDecline,
    "CONSUMER_CHANGE": consumer_messages.Change,
}


def example(name):
    """The frame that the example of a section shows."""
    [block] = fenced(MESSAGES[name])
    [frame] = FrameDecoder().receive_data(example_bytes(block))
    return frame


@pytest.mark.parametrize("name", JSON_MESSAGES)
def test_json_examples_are_what_the_code_writes_and_their_members_are_listed(name):
    frame = example(name)
    message = JSON_MESSAGES[name].decode(frame.body)
    again = message.encode() if name.startswith("HELLO") else message.encode(frame.id)
    assert again[16:] == bytes(frame.body)
    listed = [row[0] for row in tables(MESSAGES[name])[0]]
    assert listed == list(bodies.decode_json(frame.body, name))


def test_members_of_the_other_requests_are_listed():
    between_nodes = ("MEMBER", "PROMISE", "PROMOTE", "HANDOVER", "TAKE_OVER", "ACCEPTED_SEQS")
    of_segments = ("SEGMENT_CHECKPOINT", "SEGMENT_RELEASE")
    for name in (
        "CREATE_FEED",
        "SET_FEED",
        "DROP_FEED",
        "PARTITIONS",
        "CREATE_TOKEN",
        "REVOKE_TOKEN",
        "PROGRESS",
        "CONSUMER_JOIN",
        "CONSUMER_RENEW",
        "CONSUMER_RELEASE",
        "CONSUMER_STATUS",
        "CONSUMER_RESET",
        *of_segments,
        *between_nodes,
    ):
        listed = [row[0] for row in tables(MESSAGES[name])[0]]
        assert listed == list(bodies.decode_json(example(name).body, name))


async def test_members_of_what_is_explained(client, feed):
    asked = bodies.decode_json(example("EXPLAIN_RESUME").body, "EXPLAIN_RESUME")
    stream_request = bodies.decode_json(example("STREAM_REQUEST").body, "STREAM_REQUEST")
    assert list(asked) == [member for member in stream_request if member != "filter"]
    answer = await client.call(Opcode.EXPLAIN_RESUME, asked)
    assert [row[0] for row in tables(MESSAGES["EXPLAIN_RESUME"])[0]] == list(answer)


async def test_members_of_a_checkpoint(client, feed):
    await feed.put(b"k", b"v")
    partition = next(info.id for info in await feed.partitions() if info.high_seq)
    asked = {"feed_id": (await feed.resolve()).feed_id.hex(), "partition": partition, "flush": True, "state": True}
    answer = await client.call(Opcode.SEGMENT_CHECKPOINT, asked)
    _, members, of_segments = tables(MESSAGES["SEGMENT_CHECKPOINT"])
    assert [row[0] for row in members] == list(answer)
    assert [row[0] for row in of_segments] == list(answer["segments"][0])


def test_reasons_that_explain_resume_gives():
    reasons = {row[0] for row in tables(sections(OPERATIONS)["Why did my consumer start over?"])[0]}
    others = {"ahead", "unfinished_rollback", "behind", "trimmed", "draining"}
    assert reasons == {reason.value for reason in ResumeReason} | others


async def test_members_of_the_answers_are_those_of_a_node(client, feed):
    answers = {
        opcode: await client.call(opcode, {"name": feed.name}) for opcode in (Opcode.LIST_FEEDS, Opcode.PARTITIONS)
    }
    described = bodies.decode_json(example("RESULT").body, "RESULT")["feeds"][0]
    assert answers[Opcode.LIST_FEEDS]["feeds"][0].keys() == described.keys()
    listed = [row[0] for row in tables(MESSAGES["PARTITIONS"])[1]]
    assert listed == list(answers[Opcode.PARTITIONS]["partitions"][0])


def test_codes_of_errors_are_those_of_the_code():
    table = {row[0]: row[1].partition(":")[0] for row in tables(MESSAGES["ERROR"])[1]}
    assert table == {
        code: "none" if kind is failures.OutOfOrder else kind.__name__ for code, kind in failures._CODES.items()
    }
    error = messages.decode_error(example("ERROR").body)
    assert error.current == (3, U, 41)


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("WRITE", [messages._WRITE]),
        ("WRITTEN", [messages._WRITTEN]),
        ("GET", [messages._GET]),
        ("GOT", [messages.GOT_COUNT, messages.GOT_ITEM]),
        ("SNAPSHOT_START", [stream_messages._SNAPSHOT_START]),
        ("SNAPSHOT_END", [stream_messages._SEQ]),
        ("ROUND_COMPLETE", [stream_messages._U64]),
        ("CREDIT", [stream_messages._U64]),
        ("REPLICA_ACK", [replica_messages._ACK]),
        ("LEADER_SEQS", [replica_messages._SEQS]),
        ("LEADER_CHECK", [stream_messages._U64]),
        ("SEGMENT_FETCH", [segment_messages._FETCH]),
        ("SEGMENT_ACCEPT", [push_messages._PLACE]),
        ("SEGMENT_TRANSIT", [push_messages._PLACE]),
        ("SEGMENT_ACK", [push_messages._PLACE]),
    ],
)
def test_fields_lie_back_to_back_and_are_as_long_as_in_the_code(name, layouts):
    for table, layout in zip(tables(MESSAGES[name]), layouts, strict=False):
        place = 0
        for offset, nbytes, _ in table:
            if not offset or not nbytes.isdigit():
                break
            assert int(offset) == place
            place += int(nbytes)
        assert place == layout.size


def test_packed_examples_are_read_as_their_sections_say():
    block = Block.parse(messages.Write.decode(example("WRITE").body).block)
    assert block.columns().keys() == [b"apple", b"pear"]
    assert block.stamped(41, 1_700_000_000_000_000).tobytes() == bytes(example("BLOCK").body)
    write = messages.Write.decode(example("WRITE").body)
    assert (write.feed_id, write.level, write.flags) == (bytes(range(0x10, 0x20)), Level.DISK, 0)
    assert messages.Written.decode(example("WRITTEN").body) == VersionRange(3, U, 41, 42)
    get = messages.Get.decode(example("GET").body)
    assert get == (write.feed_id, Level.DISK, [b"apple", b"pear"], 0)
    found, missing = messages.Got.decode(example("GOT").body, get.keys)
    assert (found.value, found.version.seq, found.timestamp, missing) == (b"red", 41, 1_700_000_000_000_000, None)
    start = stream_messages.SnapshotStartMessage.decode(example("SNAPSHOT_START").body)
    assert start == (3, True, U, 40, 42, 0, False)
    assert stream_messages.decode_seq(example("SNAPSHOT_END").body, "SNAPSHOT_END") == (3, 42)
    assert stream_messages.decode_seq(example("SEQ_ADVANCED").body, "SEQ_ADVANCED") == (3, 50)
    assert stream_messages.decode_number(example("ROUND_COMPLETE").body, "ROUND_COMPLETE") == 1
    assert stream_messages.decode_number(example("CREDIT").body, "CREDIT") == 171
    cookies = {bytes(example(name).body) for name in ("BARRIER", "BARRIER_REACHED", "BARRIER_LOST")}
    assert cookies == {(7).to_bytes(8, "little")}
    assert example("BARRIER_LOST").id == 3
    assert replica_messages.ReplicaAck.decode(example("REPLICA_ACK").body) == (3, U, 42)
    assert replica_messages.LeaderSeqs.decode(example("LEADER_SEQS").body) == (3, 42, 40)
    fetch = segment_messages.SegmentFetch.decode(example("SEGMENT_FETCH").body)
    assert (fetch.offset, fetch.nbytes) == (1_048_576, 65_536)
    assert push_messages.SegmentAccept.decode(example("SEGMENT_ACCEPT").body) == (7, 1_048_576)
    assert push_messages.SegmentAck.decode(example("SEGMENT_ACK").body) == (7, 5_242_880)
    part = push_messages.SegmentTransit.decode(3, example("SEGMENT_TRANSIT").body)
    assert (part.number, part.offset, len(part.data)) == (7, 1_048_576, 8)
    for name in ("LEADER_CHECK", "LEADER_CONFIRM"):
        assert stream_messages.decode_number(example(name).body, name) == 7


def test_flags_of_a_write_are_those_of_the_code():
    table = {name.replace(" ", "_").upper(): int(bit) for name, bit, _ in tables(MESSAGES["WRITE"])[1]}
    assert table == {name: bit for name, bit in vars(messages.WriteFlag).items() if name.isupper()}


def test_the_bounds_of_requests_are_those_of_the_code():
    [table] = tables(sections(OVERVIEW)["How long a request may be"])
    bounds = {name: int(nbytes.replace(",", "")) for name, nbytes, _ in table}
    assert bounds.pop("every other") == frames.SMALL_BODY_BYTES
    assert bounds == {opcode.name: bound for opcode, bound in REQUEST_BOUNDS.items()}


def test_each_threat_has_its_test():
    [*_, table] = tables((DOCS / "guides" / "secure.md").read_text())
    for threat, _, named in table:
        file, test = named.split("::")
        folder = ROOT if file.startswith("tests/") else ROOT / "tests" / "tailrace_server" / "serving"
        assert f"def {test}(" in (folder / file).read_text(), threat


# docs/formats/frame.md


def test_the_frame_is_laid_out_as_it_says():
    place = 0
    for offset, nbytes, _ in tables(FRAME)[0]:
        assert int(offset) == place
        place += int(nbytes)
    assert place == frames.FRAME_HEADER_BYTES
    assert f"{frames.FRAME_BODY_BYTES_MAX:,}" in FRAME
    assert f"{frames.HELLO_BODY_BYTES_MAX:,}" in FRAME


def test_the_worked_example_of_a_frame():
    data = example_bytes(fenced(FRAME)[0])
    assert data == stream_messages.encode_seq(Opcode.SNAPSHOT_END, 3, 42, 4)
    assert f"0x{xxhash.xxh3_64_intdigest(data[:12]):016x}" in FRAME
    assert encode_frame(Opcode.NOOP).hex(" ") in FRAME


# docs/protocol/streams.md


def test_the_states_of_a_consumer_are_those_of_the_code():
    [table] = tables(sections(STREAMS)["A consumer's states"])
    received = [(state, event, after) for (state, event), after in TRANSITIONS.items() if isinstance(event, Opcode)]
    assert table == [[state.name, opcode.name, after.name] for state, opcode, after in received]


def test_the_ends_are_those_of_the_code():
    [table] = tables(sections(STREAMS)["Ends"])
    assert [row[0] for row in table] == [reason.value for reason in EndReason]
    raised = {EndReason(row[0]): row[2].removeprefix("raises ") for row in table if row[2].startswith("raises ")}
    assert raised == {reason: error.__name__ for reason, error in FINAL.items()}


def log(*entries):
    return FailoverLog(entries)


# For each row of the table: the consumer's log, S, A, B, and the node's log and high seq.
RESUMES = [
    (log(), 5, 5, 5, log((U, 1, 0)), 9),
    (log((U, 1, 0)), 5, 5, 5, log((V, 2, 0)), 9),
    (log((U, 1, 0)), 5, 3, 9, log((U, 1, 0)), 9),
    (log((U, 1, 0)), 5, 5, 10, log((V, 2, 9), (U, 1, 0)), 12),
    (log((U, 1, 0)), 5, 3, 10, log((V, 2, 9), (U, 1, 0)), 12),
    (log((U, 1, 0)), 5, 5, 5, log((V, 2, 3), (U, 1, 0)), 12),
]


def test_the_rows_of_where_a_consumer_may_go_on():
    [table] = tables(sections(STREAMS)["Where a consumer may go on"])
    for (condition, where, why), (consumer, seq, first, last, node, high_seq) in zip(table, RESUMES, strict=True):
        resume = resume_point(consumer, seq, first, last, None, node, high_seq, 0)
        assert resume.seq == {"0": 0, "S": seq, "A": first, "upper": node[0].base}[where], condition
        assert resume.why.value == why, condition
    assert {row[2] for row in table} | {"purged"} == {reason.value for reason in ResumeReason}


def consumer_at(seq, last=None, *, top=0, floor=0):
    return ResumeState(Position.at(log((U, 1, 0)), seq, seq, last), top, floor)


# For each row of the table: the consumer, and the answer.
DECISIONS = [
    (consumer_at(5), stream_messages.RollBack(3, 0, log((V, 2, 3), (U, 1, 0)), "")),
    (consumer_at(5, floor=3), stream_messages.RollBack(3, 3, log((V, 2, 3), (U, 1, 0)), "")),
    (consumer_at(5, floor=4), stream_messages.RollBack(3, 3, log((V, 2, 3), (U, 1, 0)), "")),
    (consumer_at(0, 2), stream_messages.StreamOk(3, 0, log((U, 1, 0)), 9)),
    (consumer_at(0), stream_messages.StreamOk(3, 0, log((U, 1, 0)), 9)),
    (consumer_at(5, SNAPSHOT_LAST_UNKNOWN), stream_messages.StreamOk(3, 5, log((U, 1, 0)), 9)),
    (consumer_at(5, 9, top=9), stream_messages.StreamOk(3, 5, log((U, 1, 0)), 9)),
    (consumer_at(5, 9, top=9), stream_messages.StreamOk(3, 5, log((U, 1, 0)), 8)),
    (consumer_at(5, 9, floor=9), stream_messages.StreamOk(3, 5, log((U, 1, 0)), 8)),
]


def test_the_rows_of_how_a_consumer_goes_back():
    table, modes = tables(sections(STREAMS)["How a consumer goes back"])
    for (answer, condition, move), (stored, answered) in zip(table, DECISIONS, strict=True):
        assert answer.startswith("ROLLBACK") == isinstance(answered, stream_messages.RollBack), condition
        assert decide(stored, answered).action.name == move, condition
    assert {row[2] for row in table} == {move.name for move in ResumeAction}
    assert [row[0] for row in modes] == ["follow", "restart", "stop"]
    assert f"{RING_ROWS:,} entries" in STREAMS
    assert f"{RINGS_BYTES_MAX >> 20} MiB" in STREAMS
    assert f"{KEYS_MAX:,} keys" in STREAMS


def request(**changes):
    """A STREAM_REQUEST of a consumer that stands at 5 of the only branch."""
    usual = stream_messages.StreamRequest(bytes(16), 3, log((U, 1, 0)), 5, 5, 5, None, None, Level.DISK, "leader")
    return usual._replace(**changes)


# For each row of the table: what is asked, and the node's log, state and high seq.
HANDSHAKES = [
    (request(state="follower"), log((U, 1, 0)), "leader", 9),
    (request(log=log(), state="follower"), log(), "follower", 0),
    (request(log=log((V, 2, 3), (U, 1, 0))), log((U, 1, 0)), "leader", 9),
    (request(seq=None), log((U, 1, 0)), "leader", 9),
    (request(state="follower", snapshot_last=10), log((U, 1, 0)), "follower", 9),
    (request(seq=2, snapshot_first=2, snapshot_last=2), log((U, 1, 0)), "leader", 9),
    (request(), log((V, 2, 3), (U, 1, 0)), "leader", 9),
    (request(), log((U, 1, 0)), "leader", 9),
]


def test_the_rows_of_the_handshake():
    [table] = tables(sections(STREAMS)["Handshake"])
    for (finds, answers, _), (asked, node, state, high_seq) in zip(table, HANDSHAKES, strict=True):
        seqs = {"high_seq": high_seq, "visible_seq": 8, "purge_seq": 0, "trim_seq": 3}
        answer = answer_request(asked, log=node, state=state, **seqs)
        match answer:
            case stream_messages.StreamEnd():
                assert answers == f"STREAM_END {answer.reason.value}", finds
            case stream_messages.RollBack():
                assert answers == "ROLLBACK", finds
                assert answer.seq < 5
            case stream_messages.StreamOk():
                places = {8: "the last seq that the level shows", 5: "S"}
                assert answers == f"STREAM_OK at {places[answer.seq]}", finds


def producers(*numbers, evicted=False):
    """A table that has these numbers of producer 1; ``evicted``: it had to forget some at time 0."""
    table = ProducerTable()
    if evicted:
        for producer in range(2, PRODUCERS_MAX + 3):
            table.record(producer, 1, VersionRange(0, U, 1, 1), 0.0)
    for number in numbers:
        table.record(1, number, VersionRange(0, U, number, number), 0.0)
    return table


def test_the_rows_of_resends():
    [table] = tables(sections(STREAMS)["Resends"])
    known = producers(*range(1, 20))
    cases = [
        (known, 4, True),
        (known, 20, False),
        (known, 3, True),
        (producers(), 1, False),
        (producers(), 1, True),
        (producers(evicted=True), 1, True),
        (producers(), 2, False),
    ]
    for (finds, decides), (producer_table, number, resend) in zip(table, cases, strict=True):
        decision = producer_table.decide(1, number, resend=resend, now=1.0)
        assert decision.verdict.name == re.split(r"[:,]", decides)[0].replace(" ", "_"), finds
    assert {re.split(r"[:,]", row[1])[0] for row in table} == {verdict.name for verdict in ResendVerdict}


# docs/internals/invariants.md


def test_bounds_are_those_of_the_code():
    [table] = tables(sections(INVARIANTS)["Bounds"])
    bounds = dict(table)
    limits = Limits()
    streams = f"{limits.streams_max:,}, of a replica one for each partition if these are more"
    connections = f"{limits.connections_max:,}; {limits.client_connections_max:,}"
    assert bounds["connections, those of clients, streams of a connection"] == f"{connections}; {streams}"
    waiting = f"{limits.barriers_max:,}; {limits.waiting_requests_max:,}"
    assert bounds["barriers, look-ups that wait, of a connection"] == waiting
    assert bounds["feeds; partitions of a feed"] == f"{limits.feeds_max:,}; {limits.partitions_max:,}"
    assert limits.backlog_bytes_max == 8 << 20
    assert bounds["unread answers of all clients"].startswith(f"{limits.answer_bytes_max >> 20} MiB")
    assert limits.window_bytes_max == 64 << 20


# docs/internals/reliability.md


def test_the_tests_of_the_bugs_that_an_attack_found_are_there():
    [table] = tables(sections((DOCS / "internals" / "reliability.md").read_text())["Bugs that an attack found"])
    assert len({row[0] for row in table}) == len(table) > 30
    for bug, _, test, _ in table:
        path, _, name = test.partition("::")
        source = (ROOT / "tests" / path).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in source, bug
