"""The environment of a node: clock, randomness, disk, network, threads and processes."""
