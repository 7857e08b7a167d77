"""What bench/floors.py puts beside the node: a server that does nothing but append, sync and answer."""
