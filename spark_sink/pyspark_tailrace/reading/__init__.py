"""Reading a feed from Spark, as a stream and as a batch.

    options.py            what a job says
    schema.py             the columns, and Arrow batches of those that are wanted
    offsets.py            positions as Spark's offsets, and where a query goes on after the node's history has changed
    admission.py          how much a micro-batch takes
    splits.py             ranges of a partition, and how they are cut into tasks
    node.py               what the driver asks a node
    partition_reader.py   a task: the rows of its ranges, each once, or an error
    latest_state.py       the newest row of each key, from mutations
    stream_reader.py, batch_reader.py   what Spark calls
    decoding.py           values of JSON as columns

The first five and latest_state decide, and talk to nobody.
"""
