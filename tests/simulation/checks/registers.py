"""The registers of a set: what programs have read and written at level quorum, key by key."""

from __future__ import annotations

from tests.processes.violation import Violation

from .linearisability import Outcome, Undecided, explain, is_linearisable


class Registers:
    """Records each operation in the order of the requests."""

    def __init__(self, world):
        self._world = world
        self._operations = {key: [] for key in world.keys.all["quorum"]}

    def asked(self, key, operation):
        """Records an operation. Returns the number by which `answered` replaces it."""
        self._operations[key].append(operation)
        return len(self._operations[key]) - 1

    def answered(self, key, number, operation):
        """Replaces an operation with its answered form; None drops it."""
        self._operations[key][number] = operation

    def check(self, histories, forced_at):
        """Checks that the operations on each key are linearisable, those before a forced promotion if there was one.

        Raises:
            Violation: No order of the operations on a key explains all answers.
        """
        report = self._world.report
        for key, recorded in self._operations.items():
            named = [self._by_true_names(histories, operation) for operation in recorded if operation is not None]
            operations = [operation for operation in named if operation is not None]
            if forced_at is not None:
                operations = [
                    it if it.answered < forced_at else it._replace(answered=float("inf"), outcome=Outcome.UNKNOWN)
                    for it in operations
                    if it.asked < forced_at
                ]
            try:
                holds = is_linearisable(operations)
            except Undecided:
                report.undecided += 1
                continue
            report.operations["register checked"] += 1
            if not holds:
                raise Violation(f"{key!r} is not linearisable:\n{explain(operations)}")

    def _by_true_names(self, histories, operation):
        """Returns an operation with the versions that its rows were given; a log that dropped a branch renames them.

        Returns None for a write whose refusal names a version by another name now: nothing follows from it.
        """
        version = self._by_true_name(histories, operation.version)
        expected = self._by_true_name(histories, operation.expected)
        if operation.outcome is Outcome.REFUSED and version is not None and version != operation.version:
            return None
        return operation._replace(version=version, expected=expected)

    def _by_true_name(self, histories, version):
        if version is None:
            return None
        place = self._world.feed_id, version.partition
        return version._replace(branch=histories.true_branch(place, version.branch, version.seq))
