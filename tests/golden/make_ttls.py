"""Makes the golden directory with ttls of the present release: ``python -m tests.golden.make_ttls``.

It is one of its own, beside those of `tests.golden.make`: programs that were released before ttls read those, not this.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import trio
from tests.golden.archive import HERE, pack
from tests.golden.make import STORAGE, flush
from tests.tailrace_server.partition.test_expiring import gone
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config

import tailrace
from tailrace import Delete, Put
from tailrace.block.header import TTL_S_MAX


async def rows_of(feed):
    """All mutations of a feed: partition, seq, key, value, ttl, and whether it is an expiry."""
    rows = []
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                ttls = event.block.columns().ttls()[-len(event) :]
                rows += [
                    [event.partition, row.seq, row.key.decode(), row.value and row.value.decode(), ttl, row.expired]
                    for row, ttl in zip(event, ttls, strict=True)
                ]
    return sorted(rows)


async def write(feed, first):
    """Writes rows with long ttls, without one, and a deletion; and one that is expired when this returns."""
    names = [b"%d" % number for number in range(first, first + 10)]
    await feed.write([Put(name, b"value " + name, TTL_S_MAX - int(name)) for name in names[:5]])
    await feed.write([*(Put(name, b"value " + name) for name in names[5:8]), Delete(names[0])])
    await feed.put(names[8], b"short", ttl=1)
    await gone(feed, names[8])


async def make(scratch):
    """Makes the directory; returns what a reader has to find in it."""
    async with trio.open_nursery() as nursery:
        [address] = free_addresses(1)
        node = MadeNode(make_config(scratch / "ttls", address, storage=STORAGE), nursery)
        await node.start()
        async with tailrace.connect(node.url) as client:
            # A history without bounds keeps all rows, whatever expires until they are read.
            feed = await client.create_feed("sessions", partitions=2, retention="history", ttl_s=TTL_S_MAX)
            await write(feed, 100)
            await flush(node, "sessions")
            await write(feed, 200)
            told = {"release": tailrace.__version__, "rows": await rows_of(feed)}
        await node.stop()
        nursery.cancel_scope.cancel()
    return told


def main():
    target = HERE / ".".join(tailrace.__version__.split(".")[:2])
    if (target / "ttls.json").exists():
        raise SystemExit(f"{target / 'ttls.json'} is there: golden data of a release never change")
    with tempfile.TemporaryDirectory() as made:
        told = trio.run(make, Path(made))
        pack(Path(made) / "ttls", target / "ttls.tar.xz")
    (target / "ttls.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
