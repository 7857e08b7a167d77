"""A node of Tailrace. The way of a mutation through it, from a client's WRITE to a consumer's BLOCK:

1.  ``serving/connection.py`` cuts the bytes of the socket into frames, and parses the block in the WRITE.
2.  ``feeds/catalog.py`` finds the partition that the block names.
3.  ``partition/partition.py`` takes the block, in one step: 4 to 7.
4.  ``state/producers.py`` says whether it was written before; then it is answered as it was then.
5.  ``partition/validation.py`` checks it by whole columns: its hashes belong here, and every reader can open it.
6.  It gets its seqs and its timestamp, and ``journal/writer.py`` writes it.
7.  ``tree/tree.py`` makes a new root with it. Streams of level memory have news.
8.  ``upkeep/committer.py`` fsyncs the journal, once for all that wait. Streams of level disk have news.
9.  ``stream/rounds.py`` gives each stream with news a turn; ``stream/partition_stream.py`` walks a snapshot's root.
10. ``serving/connection.py`` sends, streams first, then the WRITTEN that answers the client.

``node/node.py`` makes the parts and connects them, and ``node/start.py`` starts it: ``journal/recovery.py`` mends the
journal's end, ``feeds/recovery.py`` appends its blocks to the trees again. ``node/command.py`` is ``tailrace serve``.
``serving/console/`` and ``serving/tailing/`` are the listeners for HTTP and WebSocket. ``host/`` is replaced by a
simulator. Imports run from the top of this list of layers to its bottom (tests/test_layers.py):

    node, offline
    serving
    replication, publishing
    upkeep, stream
    feeds
    partition
    runtime
    compaction
    segment, journal, manifest
    directory
    blocks, tree, state
    host, config, setting
"""
