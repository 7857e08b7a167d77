"""What a node needs of the machine that it runs on, as objects that a test can replace."""
