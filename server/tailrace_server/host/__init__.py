"""The machine that a node runs on, as objects that a test can replace."""
