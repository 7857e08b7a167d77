"""Publishes batches exactly once: a stage is a file of blocks that no reader sees before a PUBLISH names it.

    STAGE_BLOCK ... STAGE_SEAL ──> stage file, fsynced     stages.py, stage_directory.py, stage_file.py
    PUBLISH(sink, batch, stages) ──> publisher.py ──> for each partition one record, with the batch's number
                                                      partition/published.py, state/last_batches.py

open_stage.py    a stage that is being written
stage_reader.py  reads sealed stages
stage_spreader.py, stage_source.py, stage_copy.py    copies of stages on other members of a set
eviction.py      chooses the stages that go for lack of room, pure
joining.py       joins small blocks, pure
kept_blocks.py   blocks of stages that are still in memory
cuts.py, cutting.py, spreading.py    a share that is too large for one record, in parts

A partition keeps the last batch of each sink. The journal's record that adds a partition's blocks of a batch also
changes the sink's last batch. So a partition has both or neither, after any crash.
"""
