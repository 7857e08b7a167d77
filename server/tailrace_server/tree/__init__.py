"""The write queue of a partition (``Partition.tree``).

tree.py        blocks in seq order, immutable: each change gives a new root
aging.py       which blocks are merged as they age, pure
memory.py      the memory that a block takes
key_index.py   keys to seqs, lazily
tiers.py       the index by key: sorted arrays of hashes and seqs, in tiers of rising size
"""
