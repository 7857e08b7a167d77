"""Tools for a data directory that no node serves, or, for backups, that one does (docs/guides/operations.md).

report.py        what was found, pure
listed.py        the feeds that ``_feeds`` lists
listing.py       the files of a directory, and how many bytes will be read
journal_walk.py  the journal's files read whole, behind damage as well
sieve.py         what a start would do with each record of the journal, pure
examine.py       a feed's files read whole and compared with each other
verify.py        everything together: ``tailrace verify``
salvage.py       what can be read of a damaged segment, in a new one
chains.py        a chain made of what segments say of themselves, pure
mend.py          a partition's new manifest
resift.py        a journal written anew from what can be kept
repair.py        everything together: ``tailrace repair``
backup.py        a copy of a directory while a node writes to it
restore.py       a directory made of a backup
commands.py      the commands

What they leave in a directory is in directory/: restored_marks.py, lost.py, copying.py.
"""
