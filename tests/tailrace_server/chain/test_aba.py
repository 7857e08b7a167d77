"""The seed's two ABA scenarios, and those that follow from failover logs: the same name for another thing."""

from tests.tailrace_server.chain.made import (
    FOLLOWER,
    OTHER,
    TERM,
    U,
    V,
    id_of,
    made_chain,
    made_link,
    made_offer,
    made_receiver,
    names,
)
from tests.tailrace_server.chain.world import World

from tailrace.model.failover import FailoverLog
from tailrace_server.chain import OfferCase, OfferEvent, Target, advance, compacted_link, next_link, reconnected
from tailrace_server.chain.offering import offered


def receive(receiver, *links):
    cases = []
    for link in links:
        receiver, case = receiver.received(made_offer(link), id_of("own"))
        cases.append(case)
    return receiver, cases


def test_a_minor_segment_based_on_one_that_a_major_segment_has_passed():
    """Major, minor, major, minor: the last one is based on the first minor one, and the newest is the second major.

    The follower puts the second major segment below the first minor one, so the last one continues its root.
    """
    leader = made_chain(10, 20)
    major = compacted_link(id_of("m"), leader.links[:1], leader.links[1])
    leader = leader.compacted(major).flushed(id_of("c"), U, 30)
    first, second = made_chain(10, 20).links
    receiver, cases = receive(made_receiver(), first, second, major, leader.root)
    assert cases == [OfferCase.FAST_FORWARD] * 4
    assert names(receiver.chain.links) == names(leader.links) == "mbc"


def test_a_minor_segment_whose_base_the_target_has_lost():
    """The target's disk is an older copy: its leader counts on an acknowledgement that is not true any more."""
    leader = made_chain(10, 20)
    for name in "ab":
        leader = leader.acknowledged(id_of(name), FOLLOWER)
    leader = leader.flushed(id_of("c"), U, 30)
    target = Target(FOLLOWER)
    link = next_link(leader, target)
    assert link.id == id_of("c")
    older_copy = made_receiver(*leader.links[:1])
    assert older_copy.case_of(made_offer(link)) is OfferCase.OUT_OF_ORDER
    target = offered(target, link)
    leader, target = advance(leader, target, target.number, OfferEvent.OUT_OF_ORDER)
    assert next_link(leader, target).id == id_of("a"), "from the most recent major segment on"


def test_a_target_that_has_lost_its_end_heals_without_a_new_segment():
    leader = made_chain(10, 20)
    for name in "ab":
        leader = leader.acknowledged(id_of(name), FOLLOWER)
    assert next_link(leader, Target(FOLLOWER)) is None
    leader, target = reconnected(leader, Target(FOLLOWER), last_seq=10)
    assert next_link(leader, target).id == id_of("b")


def test_a_node_that_is_assigned_again_with_an_empty_disk():
    """Acknowledgements are those of the disk that was replaced: the new one has another placement id."""
    leader = made_chain(10, 20)
    for name in "ab":
        leader = leader.acknowledged(id_of(name), FOLLOWER)
    assert next_link(leader, Target(FOLLOWER)) is None
    assert next_link(leader, Target(OTHER)).id == id_of("a")
    leader = leader.compacted(compacted_link(id_of("m"), leader.links))
    assert names(leader.deletable([FOLLOWER])) == "ab"
    assert leader.deletable([OTHER]) == ()


def test_an_empty_node_that_leads_again_takes_no_data_from_its_followers():
    """It has no log and no vote, so it is not promoted; and offers to it as a leader are invalid."""
    world = World()
    world.promote([0, 1])
    leader = world.nodes.index(next(node for node in world.nodes if node.leads))
    world.write(leader, "a", 1)
    world.flush(leader)
    world.settle(leader)
    world.replace_disk(leader)
    for members in ([0, 1], [0, 2], [1, 2], [0, 1, 2]):
        world.promote(members)
        assert not world.nodes[leader].leads
    assert any(node.leads for node in world.nodes)
    world.check_converged(world.heal())


def test_two_leaders_with_segments_of_the_same_seqs():
    """The old leader's segment u (20, 30] and the new one's v (20, 30] have the same base, and are not the same."""
    log = FailoverLog([(V, TERM, 20), (U, 1, 0)])
    receiver = made_receiver(*made_chain(10, 20).links, log=log)
    old, new = made_link("c", 20, 30, "b"), made_link("d", 20, 30, "b", branch=V)
    assert receiver.case_of(made_offer(old, TERM - 1)) is OfferCase.INVALID
    assert receiver.case_of(made_offer(old)) is OfferCase.INVALID
    receiver, cases = receive(receiver, new, old)
    assert cases == [OfferCase.FAST_FORWARD, OfferCase.INVALID]
    assert names(receiver.chain.links) == "abd"


def test_a_segment_of_the_old_leader_that_came_before_the_failover_is_rolled_back():
    receiver = made_receiver(*made_chain(10, 20, 30).links)
    receiver = receiver.following(TERM + 1, FailoverLog([(V, TERM + 1, 20), (U, TERM, 0)]), 30)
    new = made_link("d", 20, 30, "b", branch=V)
    receiver, case = receiver.received(made_offer(new, TERM + 1), id_of("own"))
    assert case is OfferCase.FAST_FORWARD
    assert names(receiver.chain.links) == "abd"


def test_compactions_of_two_leaders_over_one_history():
    """The follower has segments b and c as k, of the old leader. The new leader has compacted c with d: rows of c are
    in both. The follower takes the rows of d alone, and the next major segment makes the chains equal."""
    k = made_link("k", 10, 30, "a", included="cb")
    leader = made_chain(10, 20, 30, 40)
    leader = leader.compacted(compacted_link(id_of("x"), leader.links[2:]))
    receiver, cases = receive(made_receiver(made_chain(10).root, k), *leader.links)
    assert cases == [OfferCase.EXISTS, OfferCase.EXISTS, OfferCase.MERGE]
    assert receiver.chain.root.after_seq == 30
    leader = leader.flushed(id_of("e"), U, 50)
    leader = leader.compacted(compacted_link(id_of("m"), leader.links))
    receiver, cases = receive(receiver, *leader.links)
    assert cases == [OfferCase.FAST_FORWARD]
    assert names(receiver.chain.links) == "m"


def test_a_late_answer_to_an_offer_before_the_disk_was_replaced():
    leader, target = made_chain(10, 20), Target(FOLLOWER)
    target = offered(target, next_link(leader, target))
    late = target.number
    leader, target = reconnected(leader, target, last_seq=0)
    target = offered(target, next_link(leader, target))
    leader, target = advance(leader, target, late, OfferEvent.ACK)
    assert not leader.links[0].placements
