"""The keys of a run: all of them, and those that are in use at the moment."""

from __future__ import annotations

KEYS_PER_PARTITION = 8
# How many keys of a set are written at each level. Keys of "safe" are written at quorum, too, but not as registers.
KEYS_OF_LEVELS = {"quorum": 6, "safe": 4, "disk": 8, "memory": 4}
# The only group of keys of one node.
ANY = "any"


class Keys:
    """Groups of keys. Programs take theirs from those in use, so that other partitions fall quiet.

    Attributes:
        all: Each group's keys, by the group's name.
        in_use: Likewise, those that are in use.
    """

    def __init__(self, partition_of, groups):
        self._partition_of = partition_of
        self.all = groups
        self.in_use = dict(groups)

    def all_keys(self):
        """Returns the keys of all groups."""
        return [key for keys in self.all.values() for key in keys]

    def use_partitions(self, partitions):
        """Uses the keys of these partitions only. A group without a key there is used whole."""
        fewer = {
            name: [key for key in keys if self._partition_of(key) in partitions] for name, keys in self.all.items()
        }
        self.in_use = {name: keys or self.all[name] for name, keys in fewer.items()}

    def use_all(self):
        """Uses all keys again."""
        self.in_use = dict(self.all)


def keys_of_each_partition(partition_of, partitions):
    """Returns as many keys of each partition, in one group."""
    keys = {number: [] for number in range(partitions)}
    number = 0
    while any(len(found) < KEYS_PER_PARTITION for found in keys.values()):
        key = b"key %d" % number
        found = keys[partition_of(key)]
        if len(found) < KEYS_PER_PARTITION:
            found.append(key)
        number += 1
    return Keys(partition_of, {ANY: [key for found in keys.values() for key in found]})


def keys_of_each_level(partition_of):
    """Returns a group of keys for each level."""
    groups = {level: [b"%s %d" % (level.encode(), n) for n in range(count)] for level, count in KEYS_OF_LEVELS.items()}
    return Keys(partition_of, groups)
