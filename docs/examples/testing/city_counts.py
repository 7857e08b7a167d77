"""Counts the orders of each city from a feed, in memory. An order is ``{"city": "Rome"}``."""

import collections
import json

import tailrace


class CityCounts:
    """The city of each order that was read."""

    def __init__(self):
        self._cities = {}  # by partition, then by key

    def take(self, event):
        """Takes an event of a stream."""
        match event:
            case tailrace.Mutations():
                cities = self._cities.setdefault(event.partition, {})
                for mutation in event:
                    if mutation.deleted:
                        cities.pop(mutation.key, None)
                    else:
                        cities[mutation.key] = json.loads(mutation.value)["city"]
            case tailrace.Rollback(keys=None):  # the whole partition comes again
                self._cities.pop(event.partition, None)
            case tailrace.Rollback():  # these keys come again, with their present values
                for key in event.keys:
                    self._cities.get(event.partition, {}).pop(key, None)

    def by_city(self):
        """Returns the number of orders of each city."""
        return dict(collections.Counter(city for cities in self._cities.values() for city in cities.values()))
