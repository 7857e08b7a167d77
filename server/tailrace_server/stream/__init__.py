"""The streams that a node sends to consumers: rounds over partitions with news (``rounds``), each in snapshots
(``partition_stream``), barriers (``barriers``), and the answer to a request for a stream (``resume``)."""
