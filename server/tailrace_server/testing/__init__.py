"""The server's side of `tailrace.testing`: a node that obeys the test that has started it."""
