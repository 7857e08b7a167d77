"""The seeds that the tests run. The quick ones are among them."""

SEEDS = range(210)
QUICK = range(10)
ROLLBACKS = 213
# So many run the others, at the same time.
PROCESSES = 2
