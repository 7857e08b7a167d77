"""Links and chains of tests: ids are names, as in the pictures of docs/internals/chain.md."""

from tailrace.model.failover import FailoverLog
from tailrace.segment.identity import NO_BASE
from tailrace_server.chain import ChainLink, LinkedChain, Receiver, SegmentOffer

U, V, W = (letter * 16 for letter in (b"u", b"v", b"w"))
LEADER, FOLLOWER, OTHER = (letter * 16 for letter in (b"L", b"F", b"O"))
TERM = 3
LOG = FailoverLog([(U, TERM, 0)])


def id_of(name):
    return name.encode().ljust(16, b".") if name else NO_BASE


def made_link(name, after_seq, last_seq, base="", *, included=(), major=None, branch=U, placements=()):
    """A segment; it is major if it has no base."""
    return ChainLink(
        id_of(name),
        id_of(base),
        tuple(map(id_of, included)),
        not base if major is None else major,
        branch,
        after_seq,
        last_seq,
        placements=frozenset(placements),
    )


def made_chain(*ends, branch=U):
    """Flushed segments a, b, c ... that end at these seqs."""
    chain = LinkedChain()
    for name, end in zip("abcdefgh", ends, strict=False):
        chain = chain.flushed(id_of(name), branch, end)
    return chain


def names(links):
    return "".join(link.id.decode().rstrip(".") for link in links)


def made_receiver(*links, log=LOG, term=TERM):
    receiver = Receiver(LinkedChain(tuple(links)), log, term)
    receiver.chain.check()
    return receiver


def made_offer(link, term=TERM):
    return SegmentOffer(term, LEADER, link)
