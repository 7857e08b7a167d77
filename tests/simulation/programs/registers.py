"""Programs that use keys as registers, at level quorum.

Several of them read and write the same few keys in short operations, and record each one with the moments of its
request and of its answer. `checks/linearisability.py` judges these histories. Values are unique, so that each names its
writer.
"""

from __future__ import annotations

from tailrace import OutcomeUnknown, Retryable, VersionConflict, VersionLost, WritesLost

from ..checks.linearisability import Condition, Kind, Operation, Outcome
from .process import PATIENT_S, Process
from .writers import range_of


class RegisterProcess(Process):
    """Reads and writes keys at level quorum, and records each operation."""

    def __init__(self, world, name, *, only=""):
        """``only``: "looks"; or "refusals", writes under conditions that never hold. These two do not wait long."""
        super().__init__(world, name)
        self._known = {}
        self._only = {"looks": self._get, "refusals": self._put_in_vain}.get(only)

    async def session(self):
        retry_for = PATIENT_S if self.world.is_patient else self.random.choice((0.5, 2.0, PATIENT_S))
        if self._only:
            retry_for = 0.3
        await self.repeat(self._step, retry_for=retry_for)

    async def _step(self, feed):
        key = self.random.choice(self.world.keys.in_use["quorum"])
        action = self.random.choices(
            [self._get, self._put, self._put_if, self._delete, self._delete_if_present], [6, 3, 5, 1, 1]
        )[0]
        await (self._only or action)(feed, key)
        await self.pause(self.random.random() * 0.2)

    async def _get(self, feed, key):
        asked = self.world.checks.histories.moment()
        try:
            item = await feed.get(key, level="quorum")
        except (Retryable, OutcomeUnknown):
            return
        value, version = (None, None) if item is None else (item.value, item.version)
        operation = Operation(Kind.GET, asked, self._now(), Outcome.DONE, value, version, who=self.name)
        self.world.checks.registers.asked(key, operation)
        self._known[key] = version
        self.world.report.operation("get at quorum")

    async def _put(self, feed, key):
        value = self.new_value()
        await self._write(key, value, Condition.NONE, None, lambda: feed.put(key, value, level="quorum"))

    async def _put_if(self, feed, key):
        value, version = self.new_value(), self._known.get(key)
        if version is None:
            await self._write(
                key, value, Condition.IF_ABSENT, None, lambda: feed.put(key, value, level="quorum", if_absent=True)
            )
        else:
            await self._put_if_version(feed, key, value, version)

    async def _put_in_vain(self, feed, key):
        """Writes on condition that the key has the version of another key."""
        of = self.world.partition_of
        others = [it for it in self._known if it != key and of(it) == of(key) and self._known[it] is not None]
        if not others or self.random.random() < 0.2:
            await self._get(feed, key)
            return
        value, version = self.new_value(), self._known[self.random.choice(others)]
        kept = dict(self._known)
        await self._put_if_version(feed, key, value, version)
        self._known = kept

    async def _put_if_version(self, feed, key, value, version):
        def send():
            return feed.put(key, value, level="quorum", if_version=version)

        await self._write(key, value, Condition.IF_VERSION, version, send)

    async def _delete(self, feed, key):
        await self._write(key, None, Condition.NONE, None, lambda: feed.delete(key, level="quorum"))

    async def _delete_if_present(self, feed, key):
        await self._write(key, None, Condition.IF_PRESENT, None, lambda: feed.delete_if_present(key, level="quorum"))

    async def _write(self, key, value, condition, expected, send):
        world, checks = self.world, self.world.checks
        kind = Kind.DELETE if value is None else Kind.PUT
        operation = Operation(kind, self._now(), value=value, condition=condition, expected=expected, who=self.name)
        write = checks.promises.asked(checks.place(world.partition_of(key)), "quorum", [(key, value)])
        number = checks.registers.asked(key, operation)
        try:
            version = await send()
        except VersionConflict as conflict:
            checks.promises.refused(write)
            answer = operation._replace(answered=self._now(), outcome=Outcome.REFUSED, version=conflict.current)
            self._known[key] = conflict.current
        except VersionLost:  # nothing was written, and the key's version is unknown
            checks.promises.refused(write)
            self._known.pop(key, None)
            checks.registers.answered(key, number, None)
            return
        except (OutcomeUnknown, WritesLost, Retryable):
            self._known.pop(key, None)
            world.report.operation("write at quorum without an answer")
            return
        else:
            if version is None:
                checks.promises.refused(write)
                answer = operation._replace(answered=self._now(), outcome=Outcome.REFUSED)
            else:
                checks.promises.written(write, range_of(version))
                answer = operation._replace(answered=self._now(), outcome=Outcome.DONE, version=version)
            self._known[key] = None if value is None else version
        checks.registers.answered(key, number, answer)
        world.report.operation(f"{condition.value}: {answer.outcome.value}")

    def _now(self):
        return self.world.checks.histories.moment()
