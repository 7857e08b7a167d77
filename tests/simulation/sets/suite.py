"""The seeds that the tests run. The quick ones are among them."""

SEEDS = range(200)
QUICK = range(6)
# So many tests share the others: whoever runs tests in several processes runs them at once.
PARTS = 8
