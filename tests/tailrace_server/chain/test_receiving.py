"""The follower's side: a labelled offer for each row of the table, and the effect on the chain."""

import pytest
from tests.tailrace_server.chain.made import (
    LEADER,
    LOG,
    TERM,
    U,
    V,
    W,
    id_of,
    made_chain,
    made_link,
    made_offer,
    made_receiver,
    names,
)

from tailrace.model.failover import FailoverLog
from tailrace_server.chain import OfferCase, Receiver
from tailrace_server.chain.receiving import INCOMING_MAX, merged_link, replaces

A, B, C, D = made_chain(10, 20, 30, 40).links
K = made_link("k", 10, 30, "a", included="cb")  # compacted by another leader than the one that offers
FORKED = FailoverLog([(V, TERM, 20), (U, 1, 0)])
# Of more branches than a log keeps, the newest are known: those of the first 50 seqs are not.
SHORTENED = FailoverLog([(W, TERM, 90), (V, 2, 50)])

# case: (links, log, offered segment, answer)
OFFERS = {
    "the next segment": ([A, B], LOG, C, OfferCase.FAST_FORWARD),
    "the first segment": ([], LOG, A, OfferCase.FAST_FORWARD),
    "a major segment, to an empty follower": ([], LOG, made_link("m", 0, 30, included="cba"), OfferCase.FAST_FORWARD),
    "a major segment of all": ([A, B], LOG, made_link("m", 0, 20, included="ba"), OfferCase.FAST_FORWARD),
    "a major segment below newer ones": ([A, B, C], LOG, made_link("m", 0, 20, included="ba"), OfferCase.FAST_FORWARD),
    "a minor compaction": ([A, B, C], LOG, K, OfferCase.FAST_FORWARD),
    "a segment of the chain": ([A, B], LOG, B, OfferCase.EXISTS),
    "a segment that a link includes": ([A, K], LOG, B, OfferCase.EXISTS),
    "rows that are here in another segment": ([A, K], LOG, made_link("x", 10, 20, "a"), OfferCase.EXISTS),
    "a major segment that ends inside of a link": ([A, K], LOG, made_link("m", 0, 20, included="ba"), OfferCase.EXISTS),
    "an older major segment": ([made_link("m", 0, 40)], LOG, made_link("n", 0, 30), OfferCase.EXISTS),
    "a minor segment whose base is not here": ([A, B], LOG, D, OfferCase.OUT_OF_ORDER),
    "a minor segment, to an empty follower": ([], LOG, B, OfferCase.OUT_OF_ORDER),
    "a segment that begins inside of a link": ([A, K], LOG, made_link("x", 20, 40, "b"), OfferCase.MERGE),
    "a base of another name that ends at the last seq": ([A, B], LOG, made_link("c", 20, 30, "x"), OfferCase.MERGE),
    "an unknown branch": ([A, B], LOG, made_link("c", 20, 30, "b", branch=V), OfferCase.INVALID),
    "an unknown branch, and rows that are here": ([A, B], LOG, made_link("x", 0, 10, branch=V), OfferCase.INVALID),
    "a branch that ended below": ([A, B], FORKED, C, OfferCase.INVALID),
    "a major segment of a branch that ended below": ([A, B], FORKED, made_link("m", 0, 30), OfferCase.INVALID),
    "a branch that ended at the last seq": ([A], FORKED, B, OfferCase.FAST_FORWARD),
    "the newer branch": ([A, B], FORKED, made_link("c", 20, 30, "b", branch=V), OfferCase.FAST_FORWARD),
    "a branch that the log keeps no more": ([], SHORTENED, made_link("m", 0, 50), OfferCase.FAST_FORWARD),
    "an unknown branch above the log's oldest base": ([], SHORTENED, made_link("m", 0, 60), OfferCase.INVALID),
}


@pytest.mark.parametrize("case", OFFERS)
def test_an_offer(case):
    links, log, link, answer = OFFERS[case]
    receiver = made_receiver(*links, log=log)
    assert receiver.case_of(made_offer(link)) is answer


@pytest.mark.parametrize("term", [TERM - 1, TERM + 1])
def test_only_the_leader_that_is_followed_may_offer(term):
    assert made_receiver(A, B).case_of(made_offer(C, term)) is OfferCase.INVALID


def test_a_leader_accepts_nothing():
    leader = made_receiver(A, B).leading(TERM + 1, V)
    assert leader.leads
    assert leader.log == ((V, TERM + 1, 20), *LOG)
    for link in (B, C, made_link("m", 0, 90)):
        assert leader.case_of(made_offer(link, TERM + 1)) is OfferCase.INVALID


def test_who_has_promised_a_later_term_accepts_nothing_of_an_earlier_one():
    follower = made_receiver(A, B).promised(TERM + 1)
    assert follower.case_of(made_offer(C)) is OfferCase.INVALID
    assert not made_receiver(A, B).leading(TERM + 1, V).promised(TERM + 2).leads


def test_segments_that_are_received_are_bounded():
    receiver = made_receiver(A, B)
    for number in range(INCOMING_MAX):
        offer = made_offer(made_link(f"m{number}", 0, 90))
        assert receiver.case_of(offer) is OfferCase.FAST_FORWARD
        receiver = receiver.begun(offer)
    assert receiver.case_of(made_offer(C)) is OfferCase.OVERLOADED
    assert receiver.case_of(offer) is OfferCase.OVERLOADED
    assert receiver.abandoned(offer.link.id).case_of(made_offer(C)) is OfferCase.FAST_FORWARD


def test_a_segment_that_is_received_is_not_accepted_twice():
    receiver = made_receiver(A, B).begun(made_offer(C))
    assert receiver.case_of(made_offer(C)) is OfferCase.INFLIGHT
    assert receiver.abandoned(C.id).case_of(made_offer(C)) is OfferCase.FAST_FORWARD


@pytest.mark.parametrize("case", OFFERS)
def test_a_received_segment(case):
    """Its effect is that of its case, and only an accepted one is in the chain."""
    links, log, link, answer = OFFERS[case]
    before = made_receiver(*links, log=log).begun(made_offer(link))
    after, found = before.received(made_offer(link), id_of("own"))
    assert found is answer
    assert not after.incoming
    after.chain.check()
    if answer is OfferCase.FAST_FORWARD:
        assert link.id in {one.id for one in after.chain.links}
    elif answer is OfferCase.MERGE:
        own = after.chain.root
        assert (own.id, own.after_seq, own.last_seq) == (id_of("own"), before.chain.last_seq, link.last_seq)
        assert after.chain.is_referenced(link.id)
    else:
        assert names(after.chain.links) == names(before.chain.links)
    assert after.chain.last_seq >= before.chain.last_seq


def test_the_leader_has_what_it_has_sent():
    after, _ = made_receiver(A).received(made_offer(B), id_of("own"))
    assert after.chain.root.placements == {LEADER}
    after, _ = made_receiver(A, B).received(made_offer(B), id_of("own"))
    assert after.chain.root.placements == {LEADER}


def test_the_segment_behind_a_merged_one_is_a_fast_forward():
    receiver, case = made_receiver(A, K).received(made_offer(made_link("x", 20, 40, "b")), id_of("own"))
    assert case is OfferCase.MERGE
    following = made_offer(made_link("y", 40, 50, "x"))
    assert receiver.case_of(following) is OfferCase.FAST_FORWARD
    receiver, _ = receiver.received(following, id_of("unused"))
    major = made_offer(made_link("m", 0, 50, included="yxba"))
    receiver, case = receiver.received(major, id_of("unused"))
    assert case is OfferCase.FAST_FORWARD
    assert names(receiver.chain.links) == "m", "the leader's next major segment makes the chains equal"


def test_a_merged_segment_keeps_the_ids_that_it_includes():
    link = made_link("x", 20, 40, "b", included="zy")
    assert merged_link(made_receiver(A, K).chain, link, id_of("own")) == made_link("own", 30, 40, "k", included="xzy")


def test_a_merged_segment_does_not_name_segments_that_the_chain_has():
    """The leader has compacted B, which is here, with later rows and with one that this node has in another segment."""
    chain = made_receiver(A, B).chain
    merged = merged_link(chain, made_link("x", 5, 40, "z", included="yba"), id_of("own"))
    assert merged.included_ids == (id_of("x"), id_of("y"))
    after = chain.installed(merged)
    after.check()
    assert after.is_referenced(id_of("b"))


def test_a_transfer_that_ends_after_a_failover_changes_nothing():
    begun = made_receiver(A, B).begun(made_offer(C))
    for later in (
        begun.leading(TERM + 1, V),
        begun.promised(TERM + 1),
        begun.following(TERM + 1, FailoverLog([(V, TERM + 1, 20), *LOG]), 20),
    ):
        assert not later.incoming
        after, case = later.received(made_offer(C), id_of("own"))
        assert case is OfferCase.INVALID
        assert after.chain == later.chain


@pytest.mark.parametrize(
    ("log", "high_seq", "left"),
    [
        (FailoverLog([(V, 4, 30), (U, TERM, 0)]), 50, "abc"),
        (FailoverLog([(V, 4, 20), (U, TERM, 0)]), 50, "ab"),
        (FailoverLog([(V, 4, 25), (U, TERM, 0)]), 50, "ab"),
        (FailoverLog([(V, 4, 0)]), 50, ""),
        (LOG, 25, "ab"),
    ],
    ids=["it stands", "rolled back to an end", "a fork inside of a segment", "nothing in common", "a shorter leader"],
)
def test_following_a_leader_rolls_back_to_its_history(log, high_seq, left):
    follower = made_receiver(A, B, C).following(4, log, high_seq)
    assert names(follower.chain.links) == left
    assert (follower.log, follower.term, follower.leads) == (log, 4, False)


def test_a_node_follows_no_older_leader():
    with pytest.raises(AssertionError, match="older leader"):
        Receiver(term=4).following(3, LOG, 0)


@pytest.mark.parametrize(("seq", "held", "wins"), [(5, None, True), (5, 4, True), (5, 5, False), (5, 6, False)])
def test_the_higher_seq_wins(seq, held, wins):
    assert replaces(seq, held) is wins


def test_branches_are_those_of_the_last_seq():
    assert made_receiver(A).is_in_history(B)
    assert not made_receiver(A).is_in_history(B._replace(branch=V))
    assert not Receiver().is_in_history(B), "a node without a log knows no history"
    assert A.branch == U


@pytest.mark.parametrize(
    ("link", "answer"),
    [
        (A, OfferCase.EXISTS),
        (B, OfferCase.EXISTS),
        (C, OfferCase.MERGE),
        (D, OfferCase.OUT_OF_ORDER),
        (made_link("m", 0, 30, included="cba"), OfferCase.FAST_FORWARD),
    ],
)
def test_a_chain_whose_segments_were_all_trimmed_keeps_its_last_seq(link, answer):
    receiver = made_receiver()
    trimmed = receiver._replace(chain=receiver.chain._replace(trimmed_seq=20))
    assert trimmed.case_of(made_offer(link)) is answer
