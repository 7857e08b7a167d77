"""Bundles what a node runs on: the host, its threads and processes."""
