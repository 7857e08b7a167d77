"""A consumer's side of streams, sans-IO: where each partition stands (``partition``) and the conversation with a node
(``session``). ``tailrace.trio.stream`` is the trio shell around them."""
