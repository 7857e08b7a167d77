"""What keeps a node's storage in order: flushing, folding, trimming (docs/internals/storage.md).

storage.py     all of it as one object
committer.py   one fsync for all writes that wait
policy.py      what to flush now, pure
pace.py        how far writers may go on meanwhile, pure
installer.py   the only one who changes a partition's manifest and chain
flusher.py     the task that flushes, trims the journal, and removes what nobody needs
compactor.py   the task that folds segments in another process
"""
