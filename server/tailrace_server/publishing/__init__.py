"""Publishing exactly once: stages (files with blocks that nobody sees yet), and batches that are published from them.

    STAGE_BLOCK ... STAGE_SEAL ──> stage file, fsynced     stages.py, stage_file.py
    PUBLISH(sink, batch, stages) ──> publisher.py ──> for each partition one record, with the batch's number
                                                      partition/published.py, state/last_batches.py

crowding.py     which stages give way, pure
joining.py      small blocks made few, pure
kept_blocks.py  blocks of stages that are still in memory
cuts.py, cutting.py, spreading.py    a share that is too large for one record, in parts

A partition keeps for each sink the last batch that was published here. The journal's record that adds a partition's
blocks of a batch is the one that changes it, so both are there or neither, wherever they go.
"""
