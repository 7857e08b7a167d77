"""A client of each peer, all with the same calls: ``Client`` of each module follows ``client.Client``."""
