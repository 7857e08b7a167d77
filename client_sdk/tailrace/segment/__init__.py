"""Segments: immutable files of a partition's blocks, with an index by seq and one by key (docs/formats/segment.md).

    page.py         a page of the key table
    format.py       the header and the trailer
    block_index.py  the place of each block
    identity.py     the stretch of a partition that a segment holds
    footer.py       the parts that opening reads, verified
    key_table.py    all pages made of hash columns; rows found by hash, a few reads each
    file.py         the file of a segment, as the decoder needs it
    open_segment.py a segment opened: blocks by seq, rows by key
    rows.py         the rows of several segments in batches
    superseded.py   the rows that have a newer row of their key, pure
    newest.py       the same for the rows of several segments, in bounded memory

The server and `tailrace.SegmentReader` share this decoder; each brings its file. The server writes segments. All of it
needs numpy, so ``import tailrace`` imports none of it.
"""
