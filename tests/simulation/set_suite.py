"""The seeds that the tests run. The quick ones are among them."""

SEEDS = range(200)
QUICK = range(3)
