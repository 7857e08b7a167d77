"""docs/internals/chain.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from tailrace.model.failover import ENTRIES_MAX
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace_server.chain import ChainLink, OfferCase, OfferEvent, OfferState
from tailrace_server.chain.offering import _TABLE, _Effect
from tailrace_server.chain.receiving import INCOMING_MAX
from tailrace_server.replication.ahead_stream import AHEAD_BYTES_MAX

SERVER = Path(__file__).parents[3] / "server" / "tailrace_server"
PAGE = (Path(__file__).parents[3] / "docs" / "internals" / "chain.md").read_text()
EFFECTS = {
    "": _Effect.NONE,
    "the segment's is added": _Effect.ACKNOWLEDGE,
    "all of the target are forgotten": _Effect.FORGET,
}


def rows(heading):
    """The cells of the first table whose first column has this heading."""
    text = PAGE[PAGE.index(f"| {heading} |") :]
    lines = text.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_all_decisions_are_used_by_a_node():
    sources = [path.read_text() for path in SERVER.rglob("*.py") if path.parent.name != "chain"]
    for name in ("AppliedRanges", "LinkedChain", "Receiver", "next_link", "reconnected", "advance"):
        assert any(name in text for text in sources)


def test_the_fields_of_a_link():
    fields = [field.strip(" `") for names, _ in rows("field") for field in names.split(",")]
    assert tuple(fields) == ChainLink._fields


def test_the_table_of_a_target_is_that_of_the_code():
    table = {state: {} for state in OfferState}
    for states, events, following, effect in rows("state"):
        for state in states.split(", "):
            for event in events.split(", "):
                table[OfferState[state]][OfferEvent[event]] = OfferState[following], EFFECTS[effect]
    assert table == _TABLE


def test_the_answers_are_those_of_the_code():
    told = {(answer, effect) for _, answer, effect in rows("the offered segment")}
    accepted = {("ACCEPT", case.name.lower().replace("_", "-")) for case in OfferCase if case.is_accepted}
    assert told == accepted | {(case.name, "") for case in OfferCase if not case.is_accepted}


def test_the_numbers_are_those_of_the_code():
    assert f"at most {INCLUDED_IDS_MAX} |" in PAGE
    assert f"dropped above {INCLUDED_IDS_MAX}" in PAGE
    assert f"comes while {INCOMING_MAX} segments" in PAGE
    assert f"keeps {ENTRIES_MAX} branches" in PAGE
    assert f"AHEAD has {AHEAD_BYTES_MAX // 2**20} MiB" in PAGE
