"""The metrics of names and groups: by what they have committed, whether a program reads or not."""

from __future__ import annotations

from tests.tailrace.trio.test_groups import Member
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.metrics.test_lag import SECOND, put_each_second, wall  # noqa: F401

import tailrace


def stored(found, **labels):
    """The numbers of a series: lag in seconds and mutations, members, partitions without an owner, generation."""
    names = ("lag_seconds", "lag_mutations", "members", "unowned_partitions", "generation")
    return tuple(found.value(f"tailrace_stored_{name}", feed="orders", **labels) for name in names)


async def test_a_name_counts_by_its_last_commit(feed, wall, scraped):  # noqa: F811
    async with feed.consume(name="mailer") as stream:
        await feed.put(b"k", b"v")
        while not isinstance(await stream.next(), tailrace.Mutations):
            pass
        await stream.commit()
        assert stored(await scraped(), kind="name", name="mailer") == (0, 0, 1, 0, 1)
        await feed.put(b"k", b"w")
        wall.at_us += 7 * SECOND
        assert stored(await scraped(), kind="name", name="mailer") == (7, 1, 1, 0, 1)
    await until_gone(scraped)
    wall.at_us += SECOND
    partitions = len(await feed.partitions())
    assert stored(await scraped(), kind="name", name="mailer") == (8, 1, 0, partitions, 1)


async def until_gone(scraped):
    while stored(await scraped(), kind="name", name="mailer")[2]:
        pass


async def test_a_group_counts_its_members_and_the_partitions_without_one(feed, nursery, wall, scraped):  # noqa: F811
    partitions = len(await feed.partitions())
    await put_each_second(feed, wall, 5)
    one = await nursery.start(Member(feed).run)
    await until(lambda: len(one.owned) == partitions and len(one.keys) == 5)
    while (found := stored(await scraped(), kind="group", name="workers")) != (0, 0, 1, 0, 1):
        assert found[4] == 1
    await one.leave()
    wall.at_us += 3 * SECOND
    await feed.put(b"late", b"v")
    wall.at_us += 4 * SECOND
    assert stored(await scraped(), kind="group", name="workers") == (4, 1, 0, partitions, 1)


async def test_further_names_share_a_series(feed, scraped, monkeypatch):
    from tailrace_server.serving.metrics import scrape

    monkeypatch.setattr(scrape, "CONSUMERS_MAX", 1)
    for name in ("a", "b", "c"):
        async with feed.consume(name=name) as stream:
            await stream.commit()
    found = await scraped()
    assert len(found.by("tailrace_stored_members", "name")) <= 3
