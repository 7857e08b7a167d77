import pytest
from tests.tailrace_server.recorded import RecordJournal, info_of

from tailrace.errors import FeedExists, NoSpace, Overloaded, UnknownFeed
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.state.memory import MemoryAccount

U = b"u" * 16


@pytest.fixture
def journal():
    return RecordJournal()


@pytest.fixture
def catalog(journal):
    made = Catalog(MemoryAccount())
    made.create(info_of("orders"), journal, U, 10)
    return made


def test_feeds_are_found_by_name_and_by_id(catalog):
    feed = catalog.named("orders")
    assert catalog.of_id(b"f" * 16) is feed
    assert catalog.partition(b"f" * 16, 1) is feed.partitions[1]
    assert list(catalog) == [feed]
    assert list(catalog.partitions()) == [*catalog.system.partitions, *feed.partitions]
    assert [p.log for p in feed.partitions] == [((U, 1, 0),)] * 2
    assert b"f" * 16 in catalog
    assert bytes(16) not in catalog
    for look in (
        lambda: catalog.named("nobody"),
        lambda: catalog.of_id(bytes(16)),
        lambda: catalog.partition(b"f" * 16, 2),
    ):
        with pytest.raises(UnknownFeed):
            look()


def test_what_a_creation_finds(catalog):
    same = info_of("orders")
    other = info_of("orders", b"g" * 16)
    assert catalog.existing(same, exist_ok=False) is catalog.named("orders"), "the same request, sent again"
    assert catalog.existing(other, exist_ok=True) is catalog.named("orders")
    assert catalog.existing(info_of("new", b"g" * 16), exist_ok=False) is None
    with pytest.raises(FeedExists, match="already"):
        catalog.existing(other, exist_ok=False)
    with pytest.raises(FeedExists, match=r"partitions 2 \(asked for: 3\)"):
        catalog.existing(info_of("orders", b"g" * 16, 3), exist_ok=True)
    changed = info_of("orders", b"g" * 16, 3)
    assert catalog.existing(changed, exist_ok=True, asked={"name", "retention"}) is catalog.named("orders")
    with pytest.raises(FeedExists, match=r"partitions 2 \(asked for: 3\)"):
        catalog.existing(changed, exist_ok=True, asked={"partitions"})
    with pytest.raises(FeedExists, match="feed 'orders' has the id"):
        catalog.existing(info_of("new"), exist_ok=True)


def test_no_more_feeds_than_the_node_holds(catalog, journal):
    before = len(journal.records)
    with pytest.raises(Overloaded, match="at most 1"):
        catalog.create(info_of("new", b"g" * 16), journal, U, 1)
    assert len(journal.records) == before


def test_a_creation_that_the_journal_does_not_take_leaves_nothing(journal):
    def append(*_):
        raise NoSpace("the disk is full")

    journal.append = append
    catalog = Catalog(MemoryAccount())
    with pytest.raises(NoSpace):
        catalog.create(info_of("orders"), journal, U, 10)
    assert len(catalog) == 0
