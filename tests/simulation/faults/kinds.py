"""How often each kind of fault comes, against the others, and how hard it is."""

from __future__ import annotations

from typing import NamedTuple

# The faults of one node.
OF_ONE_NODE = {
    "kill": 3,
    "power": 3,
    "crash_at_call": 6,
    "power_at_sync": 4,
    "stop": 1,
    "cut_program": 3,
    "drop": 4,
    "slow_disk": 2,
    "failing_disk": 2,
    "full_disk": 1,
    "slow_network": 1,
    "fragments": 1,
    "losses": 4,
    "kill_follower": 3,
    "kill_in_index": 3,
    "kill_another": 2,
    "set_clock": 1,
    "other_keys": 4,
}
# While one of these goes on no other fault begins.
ALONE = ("losses",)

# The faults of a set.
OF_A_SET = {
    "kill": 4,
    "power": 3,
    "power_of_all": 1,
    "crash_at_call": 5,
    "power_at_sync": 4,
    "stop": 1,
    "cut": 8,
    "bridge": 2,
    "drop": 3,
    "slow_disk": 2,
    "failing_disk": 1,
    "slow_network": 1,
    "fragments": 1,
    "kill_program": 2,
    "set_clock": 1,
    "lose_disk": 1,
    "strange_disk": 1,
    "old_backup": 1,
    "old_disk": 1,
    "late_packet": 3,
    "promote": 3,
    "force": 2,
    "hand_over": 4,
    "usurp": 4,
    "other_keys": 2,
}
# More faults of a set with spare nodes.
OF_MEMBERS = {
    "add_member": 7,
    "remove_member": 5,
}
# The faults of a run whose programs fetch copies, besides those below.
OF_COPIES = {
    "kill_fetch": 12,
    "full_fetch": 4,
    "failing_fetch": 2,
    "harm": 6,
    "forget_checkpoints": 2,
}
COPIES_OF_ONE_NODE = OF_COPIES | {
    "kill": 2,
    "power": 2,
    "crash_at_call": 4,
    "power_at_sync": 2,
    "stop": 1,
    "cut_program": 3,
    "drop": 4,
    "slow_disk": 2,
    "failing_disk": 1,
    "full_disk": 1,
    "slow_network": 2,
    "fragments": 1,
    "set_clock": 1,
    "other_keys": 1,
}
COPIES_OF_A_SET = OF_COPIES | {
    "kill": 3,
    "power": 2,
    "crash_at_call": 2,
    "power_at_sync": 3,
    "cut": 5,
    "bridge": 1,
    "drop": 3,
    "slow_disk": 2,
    "full_disk": 1,
    "slow_network": 1,
    "fragments": 1,
    "late_packet": 2,
    "promote": 4,
    "force": 1,
    "hand_over": 4,
    "usurp": 4,
    "other_keys": 1,
}
# The faults of a run in which segments pass between nodes.
OF_SEGMENTS = {
    "die_at_step": 12,
    "stay_away": 6,
    "disk_at_step": 5,
    "break_at_step": 5,
    "repeat_answer": 3,
    "hold_step": 5,
    "fork_at_step": 3,
    "expire_at_step": 3,
    "damage_parts": 4,
    "foreign_files": 2,
    "kill": 1,
    "power": 1,
    "crash_at_call": 1,
    "power_at_sync": 2,
    "cut": 2,
    "drop": 1,
    "slow_disk": 2,
    "slow_network": 1,
    "fragments": 1,
    "late_packet": 1,
    "lose_disk": 2,
    "promote": 1,
    "force": 1,
    "hand_over": 4,
    "usurp": 2,
    "other_keys": 1,
}
# The faults of a run of a set: all of them, or a few kinds that come often enough to meet.
PROFILES = {
    "all": OF_A_SET,
    "disks": {
        "lose_disk": 3,
        "old_backup": 3,
        "strange_disk": 3,
        "late_packet": 8,
        "kill": 2,
        "promote": 4,
        "usurp": 2,
        "hand_over": 2,
        "cut": 2,
    },
    "leaders": {
        "usurp": 6,
        "hand_over": 4,
        "promote": 3,
        "kill": 3,
        "power": 3,
        "cut": 4,
        "bridge": 3,
        "kill_program": 1,
        "force": 1,
    },
    "usurpers": {"usurp": 5, "promote": 1, "kill": 1, "power_at_sync": 1},
    "crashes": {
        "power_at_sync": 6,
        "power": 4,
        "power_of_all": 2,
        "kill": 2,
        "crash_at_call": 4,
        "promote": 4,
        "usurp": 3,
        "cut": 3,
        "slow_disk": 3,
        "lose_disk": 1,
        "late_packet": 3,
    },
}
# How often a run of a set has each profile.
PROFILE_CHOICES = ("all", "all", "all", "leaders", "usurpers", "crashes", "disks")


class Pace(NamedTuple):
    """How hard faults are. A set has more nodes, so that more of them come at once, and each is shorter.

    Attributes:
        pauses_s: The pause between faults, of which a run has one. In a calm run nodes live long enough to compact a
            lot; in a stormy one little comes to its end.
        down_s: How long a node is down, at most.
        syncs: Within how many fsyncs the power goes.
        errors_s: How long a disk has errors, at most.
        slow_network_s: How long packets take, at most, and how long the network stays slow.
    """

    pauses_s: tuple[float, ...]
    down_s: float
    syncs: int
    errors_s: float
    slow_network_s: tuple[tuple[float, float], float]


PACE_OF_ONE_NODE = Pace((0.5, 1.0, 1.0, 3.0), 4.0, 10, 2.0, ((0.02, 0.2), 2.0))
PACE_OF_A_SET = Pace((0.3, 0.5, 1.0, 2.0), 3.0, 6, 1.0, ((0.02, 0.1), 1.0))
# The pauses between faults of a run with copies, or with transfers between nodes: most of its faults are short.
PAUSES_OF_COPIES = (0.2, 0.4, 1.0)


def pauses_of(plan, pace):
    """Returns the pauses between faults, of which a run has one."""
    return PAUSES_OF_COPIES if plan.has_copies or plan.way else pace.pauses_s


def kinds_of(plan, rnd):
    """Returns the kinds of faults of a run, each with its weight."""
    if plan.way:
        return {kind: weight for kind, weight in OF_SEGMENTS.items() if plan.may_force or kind != "force"}
    if plan.has_copies and not plan.is_set:
        return COPIES_OF_ONE_NODE
    if plan.has_copies:
        return {kind: weight for kind, weight in COPIES_OF_A_SET.items() if plan.may_force or kind != "force"}
    if not plan.is_set:
        return OF_ONE_NODE
    profile = rnd.choice(PROFILE_CHOICES)
    # Some runs lack a few kinds, so that the others go further.
    left_out = set(rnd.sample(sorted(OF_A_SET), rnd.choice((0, 3, 6))))
    if not plan.may_force:
        left_out.add("force")
    of_members = OF_MEMBERS if plan.spares else {}
    kinds = PROFILES[plan.profile or profile] | of_members
    return {kind: weight for kind, weight in kinds.items() if kind not in left_out}
