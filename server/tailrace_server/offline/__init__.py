"""Tools for the data directory of a stopped node; backups also work while a node runs (docs/guides/operations.md).

report.py           the findings, pure
data_directory.py   the files of a directory
journal_walk.py     reads all of a journal, also behind damage
dry_replay.py       the effect of each record of the journal on a start, pure
findings.py         reads and compares the files of all feeds
listed_feeds.py     the feeds that ``_feeds`` lists
verify.py           ``tailrace verify``
salvage.py          the readable rows of a damaged segment
chains.py           a chain made of the identities of segments, pure
partition_repair.py a new manifest for a partition
journal_survey.py   the first pass of a repair over the journal
journal_rewrite.py  a new journal with all records that can stay
journal_swap.py     the files of the new journal
repairing_mark.py   the file REPAIRING
repair.py           ``tailrace repair``
backup.py           ``tailrace backup``
restore.py          ``tailrace restore``
commands.py         the command line

The files that they leave in a directory are in directory/: restored_marks.py, lost.py, copying.py.
"""
