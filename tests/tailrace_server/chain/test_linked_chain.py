"""The links of a chain: references, fast-forwards, rollbacks, acknowledgements, and the files that may go."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.tailrace_server.chain.made import (
    FOLLOWER,
    LEADER,
    OTHER,
    U,
    id_of,
    made_chain,
    made_link,
    names,
)

from tailrace.segment.identity import INCLUDED_IDS_MAX, NO_BASE, SegmentIdentity
from tailrace_server.chain import ChainLink, LinkedChain, compacted_link
from tailrace_server.chain.link import bounded_history


def test_the_first_segment_has_no_base_and_is_major():
    chain = LinkedChain()
    assert (chain.root, chain.root_id, chain.last_seq, chain.purge_seq) == (None, NO_BASE, 0, 0)
    chain = made_chain(10, 20)
    chain.check()
    a, b = chain.links
    assert (a.base_id, a.is_major, a.after_seq) == (NO_BASE, True, 0)
    assert (b.base_id, b.is_major, b.after_seq) == (a.id, False, 10)
    assert chain.root == b


def test_a_link_of_an_identity():
    identity = SegmentIdentity(
        feed_id=bytes(16),
        partition=0,
        branch=U,
        segment_id=id_of("b"),
        base_id=id_of("a"),
        included_ids=(id_of("x"),),
        is_major=False,
        deduplicated=True,
        after_seq=10,
        last_seq=20,
        purge_seq=3,
    )
    link = ChainLink.of(identity, [LEADER])
    assert link == made_link("b", 10, 20, "a", included="x", placements=[LEADER])._replace(purge_seq=3)


# (segments by first input and count that are compacted, in their order), by the seed's own procedure.
COMPACTIONS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=6)


@given(COMPACTIONS)
def test_references_are_those_of_the_walk_from_the_root(steps):
    """The oracle is the walk of EventQL's paper, over a list in which each compaction takes the whole chain."""
    chain, listed, number = LinkedChain(), [], 0
    for flushes, _ in steps:
        for _ in range(flushes):
            number += 1
            chain = chain.flushed(id_of(f"s{number}"), U, number)
            listed.append((id_of(f"s{number}"), chain.links[-1].base_id, (), chain.links[-1].is_major))
        number += 1
        inputs = chain.links
        chain = chain.compacted(compacted_link(id_of(f"m{number}"), inputs))._replace(retired=chain.retired)
        chain = chain._replace(retired=(*chain.retired, *inputs))
        number -= 1
        listed.append((chain.root_id, inputs[-1].id, chain.links[-1].included_ids, True))
    chain.check()
    for id_, *_ in listed:
        assert chain.is_referenced(id_) == walk(listed, chain.root_id, id_, found=True, major=None, end=False)
        assert chain.is_referenced_weak(id_) == walk(listed, chain.root_id, id_, found=False, major=True, end=True)
    assert not chain.is_referenced(id_of("unknown"))


def walk(listed, root_id, sought, *, found, major, end):
    """The walk. ``found``, ``major``: the answer at the sought segment, at a major one; ``end``: elsewhere."""
    next_id = root_id
    for id_, base_id, included, is_major in reversed(listed):
        if id_ != next_id:
            return end
        if sought in included:
            return True
        if id_ == sought:
            return found
        if is_major and major is not None:
            return major
        next_id = base_id
    return end


# name, chain, segment, the chain's segments after a fast-forward or None, the retired ones
A, B, C = made_chain(10, 20, 30).links
FAST_FORWARDS = {
    "the next segment": ([A, B], C, "abc", ""),
    "a first segment": ([], A, "a", ""),
    "a compacted segment at the end": ([A, B], made_link("m", 0, 20, included="ba"), "m", "ab"),
    "a major segment in front of a newer one": ([A, B, C], made_link("m", 0, 20, included="ba"), "mc", "ab"),
    "a minor one in the middle": (
        [A, B, C, made_link("d", 30, 40, "c")],
        made_link("m", 10, 30, "a", included="cb", major=False),
        "amd",
        "bc",
    ),
    "one of a single input": ([A, B], made_link("m", 0, 10, included="a"), "mb", "a"),
    "a major one far ahead": ([A, B], made_link("m", 0, 90, included="zy"), "m", "ab"),
    "the oldest of a trimmed history": ([A, B], made_link("m", 25, 90, "t", included="zy", major=True), "m", "ab"),
    "based on a segment that the root includes": (
        [made_link("m", 0, 20, included="ba")],
        made_link("c", 20, 30, "b"),
        "mc",
        "",
    ),
    "compacted with rows that are not here yet": ([A, B], made_link("m", 10, 40, "a", included="dcb"), "am", "b"),
    "a base that is not here": ([A, B], made_link("d", 30, 40, "c"), None, None),
    "another base that ends at the same seq": ([A, B], made_link("c", 20, 30, "x"), None, None),
    "the end is inside of a link": ([A, made_link("k", 10, 30, "a")], made_link("m", 0, 20), None, None),
    "the beginning is inside of a link": ([A, B], made_link("x", 15, 30, "y"), None, None),
    "the next one is not based on it": ([A, B], made_link("m", 0, 10, included="x"), None, None),
    "a minor one in an empty chain": ([], made_link("b", 10, 20, "a"), None, None),
}


@pytest.mark.parametrize("case", FAST_FORWARDS)
def test_fast_forward(case):
    links, link, installed, retired = FAST_FORWARDS[case]
    chain = LinkedChain(tuple(links)).installed(link)
    if installed is None:
        assert chain is None
    else:
        chain.check()
        assert (names(chain.links), names(chain.retired)) == (installed, retired)


@pytest.mark.parametrize(("seq", "left"), [(35, "abc"), (30, "abc"), (29, "ab"), (10, "a"), (9, ""), (0, "")])
def test_a_rollback_ends_at_an_end_of_a_link(seq, left):
    assert names(made_chain(10, 20, 30).rolled_back(seq).links) == left


def test_a_rollback_forgets_retired_links_above_the_chain():
    chain = made_chain(10, 20, 30)
    chain = chain.compacted(compacted_link(id_of("m"), chain.links[1:]))
    assert names(chain.retired) == "bc"
    assert chain.rolled_back(20) == LinkedChain(chain.links[:1])


def test_a_file_may_go_when_it_is_replaced_acknowledged_and_not_read():
    chain = made_chain(10, 20, 30)
    chain = chain.acknowledged(id_of("a"), FOLLOWER).acknowledged(id_of("b"), FOLLOWER).acknowledged(id_of("a"), OTHER)
    chain = chain.compacted(compacted_link(id_of("m"), chain.links[:2], chain.links[2]))
    assert names(chain.links) == "mc"
    assert names(chain.deletable([FOLLOWER])) == "ab"
    assert names(chain.deletable([FOLLOWER], pinned=[id_of("a")])) == "b"
    assert names(chain.deletable([FOLLOWER, OTHER])) == "a", "no one but the follower has acknowledged b"
    assert names(chain.deletable([])) == "ab"
    chain = chain.acknowledged(id_of("m"), OTHER)
    assert names(chain.deletable([FOLLOWER, OTHER])) == "ab", "whoever has the result has its inputs' rows"
    gone = chain.deletable([FOLLOWER])
    assert chain.without(gone) == chain._replace(retired=())


def test_acknowledgements_above_a_seq_are_forgotten():
    chain = made_chain(10, 20, 30)
    for name in "abc":
        chain = chain.acknowledged(id_of(name), FOLLOWER).acknowledged(id_of(name), OTHER)
    chain = chain.forgotten(FOLLOWER, above=10)
    assert [FOLLOWER in link.placements for link in chain.links] == [True, False, False]
    assert all(OTHER in link.placements for link in chain.links)


@given(st.integers(1, 40), st.integers(1, 6))
def test_the_history_is_bounded_and_keeps_the_ids_that_are_needed(generations, inputs):
    """However often a chain is compacted, the segment behind the result is based on one that the result includes."""
    chain = made_chain(10)
    behind = None
    for number in range(generations):
        first = len(chain.links) - 1
        for _ in range(inputs):
            chain = chain.flushed(id_of(f"{number}.{chain.last_seq}"), U, chain.last_seq + 1)
        if behind is None:
            behind = chain.root
            continue
        result = compacted_link(id_of(f"m{number}"), chain.links[:first], chain.links[first])
        assert len(result.included_ids) <= INCLUDED_IDS_MAX
        chain = chain.compacted(result)
        chain.check()


def test_inputs_come_before_the_ids_that_they_include():
    newest = made_link("b", 10, 20, "a", included="xy")
    older = made_link("a", 0, 10, included="zx")
    assert bounded_history(newest, [older], [id_of("y")]) == tuple(map(id_of, "ybaxz"))


def test_the_check_names_a_broken_chain():
    for broken in (
        LinkedChain((A, C)),
        LinkedChain((B,)),
        LinkedChain((A,), (A,)),
        LinkedChain((A,), (B,)),
        LinkedChain((A._replace(last_seq=0),)),
        LinkedChain((A._replace(purge_seq=11),)),
        LinkedChain((A._replace(included_ids=(A.id,)),)),
        LinkedChain((A._replace(included_ids=tuple(id_of(f"i{number}") for number in range(INCLUDED_IDS_MAX + 1))),)),
    ):
        with pytest.raises(AssertionError):
            broken.check()
