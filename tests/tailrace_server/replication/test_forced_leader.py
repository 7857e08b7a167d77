"""What becomes of the rows of a leader that was forced without a majority, when the lost members come back."""

from tests.tailrace_server.replication.made_set import numbered, put, until


async def test_rows_of_a_forced_leader_stay_when_a_member_of_later_terms_comes_back(members):
    """The first was away while the others led. It is forced, and the second gets a new disk, which votes then."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        first, second, third = members
        await first.stop()
        for node in (second, third, second):
            await node.promote()
            await members.settled()
        await put(feed, numbered(10, 5))
        await second.kill()
        await third.kill()
        await first.start()
        await first.promote(force=True)
        second.replace_disk()
        await second.start()
        await until(lambda: second.is_up and second.member.local.votes)
        rows = numbered(0, 5) | numbered(20, 5)
        await put(feed, numbered(20, 5), "quorum")
        await third.start()
        await members.level("orders")
        for node in members:
            assert node.rows("orders") == rows
        await put(feed, numbered(30, 5), "quorum")
        assert first.leads
        await until(lambda: third.member.local.votes)
