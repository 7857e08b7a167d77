"""A partition's write queue: an immutable tree of blocks, ordered by seq (``tree``)."""
