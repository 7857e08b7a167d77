"""Shares the partitions of a feed among the members of a group. Pure.

Each member gets as many as the others, or one more. As few partitions as possible change their owner: a member gives up
only those above its share, and the larger shares go to the members that own the most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def assign(partitions: Collection[int], members: Collection[bytes], owners: Mapping[int, bytes]) -> dict[int, bytes]:
    """Returns the owner that each partition should have; none if there are no members.

    Args:
        partitions: The partitions to share.
        members: The ids of the members.
        owners: The present owners. Partitions without one, or with one that is no member, are missing or ignored.
    """
    if not members:
        return {}
    owned: dict[bytes, list[int]] = {member: [] for member in sorted(members)}
    free: list[int] = []
    for partition in sorted(partitions):
        owned.get(owners.get(partition, b""), free).append(partition)
    share, larger = divmod(len(partitions), len(owned))
    # A sort that is stable: members that own as many are in the order of their ids.
    by_count = sorted(owned, key=lambda member: -len(owned[member]))
    quotas = {member: share + (number < larger) for number, member in enumerate(by_count)}
    for member, mine in owned.items():
        free += mine[quotas[member] :]
        del mine[quotas[member] :]
    free.sort()
    for member in by_count:
        missing = quotas[member] - len(owned[member])
        owned[member] += free[:missing]
        del free[:missing]
    return {partition: member for member, mine in owned.items() for partition in mine}
