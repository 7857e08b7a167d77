"""Upkeep of a node's storage: commits, flushes, compactions, trimming (docs/internals/storage.md).

storage.py     the storage as one object
committer.py   one fsync for all writes that wait
policy.py      chooses the write queues to flush, pure
pace.py        bounds how far writers get meanwhile, pure
installer.py   changes manifests and chains; nothing else does
flusher.py     the task that flushes, then trims
flushed_segment.py  the segment that a flush writes
flush_failures.py  the pauses after flushes that have failed
merger.py      merges small blocks as they age
trimmer.py     removes journal files, replaced segments and dropped feeds
compactor.py   the task that compacts segments in another process
compaction_state.py  what the compactor does with a partition, for people
damage_checks.py  checks the segments that have come damaged to a client
segment_checks.py  checks all segments, in the background
begun_anew.py  the partitions that a follower has begun anew
snapshot_segment.py  the segment of a snapshot that a follower gets
broken_transfers.py  segments whose transfer to a follower broke, kept for a while
incoming_segments.py  the files of segments that a leader pushes
received_chain.py  puts segments that another node has sent in the place of a chain
receive_failures.py  the partitions that cannot take a segment, and their pauses
ahead_file.py, ahead_files.py  AHEAD, rows that came before the rows below them
checkpoints.py  the checkpoints that clients copy
received_files.py  the files of segments that are being received
rollback.py    rolls a partition back
held_writer.py keeps HELD up to date
space.py       the free space of the disk
"""
