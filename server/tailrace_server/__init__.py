"""A node of Tailrace. The way of a mutation through it, from a client's WRITE to a consumer's BLOCK:

1.  ``serving/connection.py`` cuts frames out of what the socket gives, and parses the block in the WRITE.
2.  ``catalog.py`` finds the partition that the block names.
3.  ``partition.py`` takes the block, in one step: 4 to 7.
4.  ``intake/producers.py`` says whether it was written before; then it is answered as it was then.
5.  ``intake/door.py`` checks it by whole columns: its hashes belong here, and every reader will be able to open it.
6.  It gets its seqs and its timestamp, and ``journal/writer.py`` writes it.
7.  ``tree/tree.py`` makes a new root with it. Streams of level memory have news.
8.  ``intake/committer.py`` fsyncs the journal, once for all that wait. Streams of level disk have news.
9.  ``stream/rounds.py`` gives each stream with news a turn; ``stream/partition_stream.py`` walks a snapshot's root.
10. ``serving/connection.py`` sends, streams first, then the WRITTEN that answers the client.

``node.py`` holds all of it together, and ``start.py`` starts it: ``journal/recovery.py`` mends the journal's end,
``feed_recovery.py`` hangs its blocks into the trees again. ``command.py`` is ``tailrace serve``; ``console/`` and
``tailing/`` are the doors for HTTP and WebSocket; ``host/`` is what a simulator replaces. docs/internals/tour.md: why.
"""
