"""Copies of feeds on disk, which ``tailrace fetch`` makes of a node's segments (docs/formats/copy.md).

    layout.py     the names of the files, and the bytes of FEED.json and CHECKPOINT.json, pure
    copy_file.py  a segment's file in a copy, whose errors say what to do
    chain.py      the segments of a partition, opened; the newest row of each key
    reader.py     `tailrace.SegmentReader`
    compare.py    a copy against a checkpoint of a node: the decision, and the missing files, pure
    directory.py  the directory while a fetch works on it
    receiver.py   a segment's file while it comes
    fetch_plan.py the call of a fetch, which loads fetch.py
    fetch.py      the plans of a fetch

chain.py needs numpy, and reader.py imports it at the first need.
"""
