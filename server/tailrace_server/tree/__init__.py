"""A partition's write queue (``tree``).

tree.py        blocks in seq order, immutable: each change gives a new root
aging.py       which blocks are merged as they age, pure
memory.py      what a block takes in memory
key_index.py   keys to seqs, lazily
runs.py        what the index is made of: sorted arrays of hashes and seqs
"""
