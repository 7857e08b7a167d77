"""The checks of `World` can fail: each bug that is planted here is found within a few lives."""

import pytest
from tests.tailrace_server.chain.lives import live

from tailrace_server.chain import compaction_rules, link, offering, receiving
from tailrace_server.chain.linked_chain import LinkedChain
from tailrace_server.chain.offering import OfferState
from tailrace_server.chain.receiving import OfferCase, Receiver

original_case = Receiver._case_by_chain
original_installed = LinkedChain.installed
original_received = Receiver.received


def older_row_wins(seq, held_seq):
    return held_seq is None or seq < held_seq


def accept_without_base(self, offer):
    case = original_case(self, offer)
    return OfferCase.MERGE if case is OfferCase.OUT_OF_ORDER and self.chain.links else case


def delete_unacknowledged(self, placements, pinned=()):
    return tuple(one for one in self.retired if one.id not in pinned)


def delete_pinned_and_needed(self, placements, pinned=()):
    return self.retired


def unbounded_history(newest, older=(), needed=()):
    inputs = (newest, *older)
    ids = [*needed, *(one.id for one in inputs), *(id_ for one in inputs for id_ in one.included_ids)]
    return tuple(dict.fromkeys(ids))


def history_without_the_base_behind(newest, older=(), needed=()):
    return bounded(newest, older)


bounded = link.bounded_history


def every_history(self, one):
    return True


def accept_of_anyone(self, offer):
    return original_case(self._replace(leads=False), offer._replace(term=self.term))


def received_unjudged(self, offer, own_id):
    if self.is_in_history(offer.link):
        return original_received(self._replace(leads=False), offer._replace(term=self.term), own_id)
    return original_received(self, offer, own_id)


def purge_in_minor_compactions(inputs, stable_seq):
    return min(stable_seq, inputs[-1].last_seq)


def purge_unnoticed(id, inputs, behind=None, purged_seq=0):
    return original_compacted(id, inputs, behind)


original_compacted = compaction_rules.compacted_link


def roll_back_to_the_middle(self, seq):
    return LinkedChain(tuple(one for one in self.links if one.after_seq < seq))


def install_over_newer_rows(self, one):
    if one.is_major and self.links:
        return LinkedChain((one,), (*self.retired, *self.links))
    return original_installed(self, one)


def forget_nothing_at_reconnection(chain, target, last_seq):
    return chain, target._replace(state=OfferState.IDLE)


def compact_unstable(links, stable_seq):
    return tuple(links)


# The bug: the patched objects, as (owner, name, replacement).
BUGS = {
    "a merge prefers the older row": [(receiving, "replaces", older_row_wins)],
    "a segment is accepted whose base is gone": [(Receiver, "_case_by_chain", accept_without_base)],
    "a file is removed that a target has not acknowledged": [(LinkedChain, "deletable", delete_unacknowledged)],
    "a file is removed that is being sent": [(LinkedChain, "deletable", delete_pinned_and_needed)],
    "the history is unbounded": [
        (compaction_rules, "bounded_history", unbounded_history),
        (receiving, "bounded_history", unbounded_history),
    ],
    "the history loses the base of the next segment": [
        (compaction_rules, "bounded_history", history_without_the_base_behind)
    ],
    "a segment of another history is accepted": [(Receiver, "is_in_history", every_history)],
    "a segment of an older leader is accepted": [(Receiver, "_case_by_chain", accept_of_anyone)],
    "a received segment is not judged again": [(Receiver, "received", received_unjudged)],
    "a minor compaction drops tombstones": [(compaction_rules, "tombstones_bound", purge_in_minor_compactions)],
    "what may be rolled back is compacted, and a rollback keeps a segment that reaches above it": [
        (compaction_rules, "compactable", compact_unstable),
        (LinkedChain, "rolled_back", roll_back_to_the_middle),
    ],
    "an older major segment replaces newer rows": [(LinkedChain, "installed", install_over_newer_rows)],
    "a target is not asked how far it has come": [(offering, "reconnected", forget_nothing_at_reconnection)],
}

# The seed of a life that finds it; 0 if it is not listed. Without the bug, the life is as it should be.
FOUND_BY = {
    "a segment is accepted whose base is gone": 107,
    "the history loses the base of the next segment": 101,
    "a segment of another history is accepted": 42,
    "a segment of an older leader is accepted": 18,
    "a received segment is not judged again": 18,
    "a target is not asked how far it has come": 28,
    "what may be rolled back is compacted, and a rollback keeps a segment that reaches above it": 14,
}


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    seed = FOUND_BY.get(bug, 0)
    live(seed)
    for owner, name, replacement in BUGS[bug]:
        monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        live(seed)
