"""Reading a feed from Spark, as a stream and as a batch.

    options.py            the options of a reading job
    schema.py             the columns, and Arrow batches of the requested ones
    offsets.py            positions as Spark's offsets, and resuming after the node's history has changed
    admission.py          the size of a micro-batch
    splits.py             ranges of a partition, cut into tasks
    segment_plan.py       which ranges of a batch are planned by segments, and how they are cut
    feed_client.py        the driver's questions to a node
    partition_reader.py   a task: the rows of its ranges, each once, or an error
    latest_state.py       the newest row of each key, from mutations
    stream_reader.py, batch_reader.py   the classes that Spark calls
    decoding.py           values of JSON as columns

The first six and latest_state are pure: they decide, without any I/O.
"""
