"""The seeds that the tests run. The quick ones are among them."""

SEEDS = range(210)
QUICK = range(10)
ROLLBACKS = 0
BATCH = 20
