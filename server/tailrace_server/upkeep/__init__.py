"""What keeps a node's storage in order: flushing, folding, trimming (docs/internals/storage.md).

policy.py      what to flush now, pure
homes.py       which journal files hold something that has no other home yet, pure
installer.py   the only one who changes a partition's manifest and chain
flusher.py     the task that flushes, trims the journal, and removes what nobody needs
compactor.py   the task that folds segments in another process
"""
