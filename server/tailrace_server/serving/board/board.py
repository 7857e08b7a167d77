"""Takes samples of a node for those who look, and keeps what a single sample cannot tell: rates, and since when.

a look ──> `fresh`: a sample that is younger than its interval serves all
`run` ──> every 2 s the problems of the node, so that their beginning is known when an operator comes
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tailrace_server.replication.promotion_forecast import forecast_of
from tailrace_server.serving.board.problems import Problem, node_problems
from tailrace_server.serving.board.sample import Sample
from tailrace_server.serving.board.since import Since
from tailrace_server.serving.board.states import Judgement, State, judge_consumer, judge_stopped, judge_told
from tailrace_server.serving.metrics.first_rows import FirstRows
from tailrace_server.serving.metrics.lags import settle_all

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from tailrace_server.serving.board.sample import ConsumerSums
    from tailrace_server.serving.services import Services

log = logging.getLogger("tailrace.http")

# The age of a sample at which the next one is taken.
INTERVAL_SECONDS = 2.0
# A sample may take this part of the time: with very many partitions the interval grows, but to no more than this.
SHARE_MAX = 0.01
INTERVAL_SECONDS_MAX = 10.0
# Rates are told over two samples that are at most so far apart.
RATE_SECONDS_MAX = 30.0
# The seconds for which a sample has the loop before others have their turn.
SLICE_SECONDS = 0.002
# The steps between two looks at the clock.
_STEPS_AT_ONCE = 16
# The state of a consumer that is not in the last sample.
_UNKNOWN = Judgement(State.MOVING)


class Health(NamedTuple):
    """The problems of a node, for how many seconds each has been seen, and what `promote` would do."""

    problems: list[tuple[Problem, float]]
    promotion: str


class Board:
    """The samples of a node. Only its own methods change its fields."""

    def __init__(self, node: Services) -> None:
        self.node = node
        self.before: Sample | None = None  # the sample before `now`
        self.now: Sample | None = None
        self._since = Since(node.clock.monotonic)
        self._judged: dict[str, Judgement] = {}
        # Questions that may take a thread for seconds: it is not the console's alone.
        self.long_questions = trio.CapacityLimiter(1)
        self._rows = FirstRows(node)
        self._turn = trio.Lock()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._connections = 0
        self._interval_s = 0.0  # of the sample that is there
        self._health: Health | None = None
        self._health_at = self._health_interval_s = 0.0

    async def run(self) -> None:
        """Notes when problems of the node begin, until cancelled."""
        while True:
            try:
                self.health()
            except Exception:  # a bug of ours costs the time at which a problem began, and not the listener
                log.exception("the problems of the node cannot be told")
            await trio.sleep(max(INTERVAL_SECONDS, self._health_interval_s))

    def health(self) -> Health:
        """Returns the problems of the node, as found in the last interval: a leader looks at all its partitions."""
        monotonic = self.node.clock.monotonic
        begin = monotonic()
        if self._health is None or begin - self._health_at >= self._health_interval_s:
            problems = node_problems(self.node)
            ages = self._since.note("problem", {problem.key: problem.severity for problem in problems})
            leadership = self.node.leaderships.unnamed
            member = self.node.members.get(leadership.group.number)
            promotion = forecast_of(self.node, leadership, member).text
            self._health = Health([(problem, ages[problem.key]) for problem in problems], promotion)
            self._health_at, self._health_interval_s = begin, _interval(monotonic() - begin)
        return self._health

    async def fresh(self) -> Sample:
        """Returns a sample that is younger than the interval."""
        async with self._turn:
            now = self.node.clock.monotonic()
            if self.now is None or now - self.now.at >= self._interval_s:
                sample = await self._take()
                self.before, self.now = self.now, sample
                self._note(sample)
            return self.now

    def seconds_between(self) -> float | None:
        """Returns the seconds between the last two samples; None if they tell no rate."""
        if self.now is None or self.before is None:
            return None
        seconds = self.now.at - self.before.at
        return seconds if 0 < seconds <= RATE_SECONDS_MAX else None

    async def _take(self) -> Sample:
        self._rows.begin()
        sample = Sample(self.node, self._rows, self._number_of)
        self._interval_s = _interval(await self._in_slices(sample.steps()))
        await settle_all(sample.lags, self._rows)
        return sample

    async def _in_slices(self, steps: Iterator[None]) -> float:
        """Goes through ``steps``, and lets other tasks run after each SLICE_SECONDS. Returns the time without them."""
        monotonic = self.node.clock.monotonic
        await trio.lowlevel.checkpoint()
        begin, spent_s = monotonic(), 0.0
        for number, _ in enumerate(steps):
            if number % _STEPS_AT_ONCE == 0 and monotonic() - begin >= SLICE_SECONDS:
                spent_s += monotonic() - begin
                await trio.lowlevel.checkpoint()
                begin = monotonic()
        return spent_s + monotonic() - begin

    def _note(self, sample: Sample) -> None:
        """Judges all consumers, by what they were sent and have handled since the sample before."""
        limits, now = self.node.config.limits, self.node.clock.monotonic()
        waiting = {id: _mark(consumer) for id, consumer in sample.consumers.items()}
        idle = self._since.note("mark", waiting)
        found: dict[str, Judgement] = {}
        for id, consumer in sample.consumers.items():
            if consumer.stopped_at is not None:
                seconds = now - consumer.stopped_at
                found[id] = judge_stopped(lag_mutations=consumer.lag.mutations, seconds=seconds)
                continue
            if consumer.tells:
                found[id] = judge_told(
                    unseen=consumer.visible - consumer.sent,
                    lag_mutations=consumer.lag.mutations,
                    level=consumer.level,
                )
                continue
            idle_s = max(0.0 if waiting[id] is None else idle[id], consumer.connection.stuck_seconds(now))
            judgement = judge_consumer(
                unsent=consumer.visible - consumer.sent,
                unhandled=consumer.unhandled,
                lag_mutations=consumer.lag.mutations,
                level=consumer.level,
                idle_s=idle_s,
                slow_after_s=limits.slow_after_s,
            )
            found[id] = judgement._replace(seconds=idle_s) if judgement.state is State.STUCK else judgement
        ages = self._since.note("state", {id: judgement.state for id, judgement in found.items()})
        self._judged = {
            id: judgement if judgement.state in (State.STUCK, State.AWAY) else judgement._replace(seconds=ages[id])
            for id, judgement in found.items()
        }

    def judged(self, consumer: ConsumerSums) -> Judgement:
        """Returns the state of a consumer of the last sample."""
        return self._judged.get(consumer.id, _UNKNOWN)

    def seconds_as(self, subject: str, values: Mapping[Any, Hashable]) -> dict[Any, float]:
        """Returns for how many seconds each of the named things has been seen to have its value: `Since.note`."""
        return self._since.note(subject, values)

    def _number_of(self, connection: Any) -> int:
        number = self._numbers.get(connection)
        if number is None:
            self._connections += 1
            number = self._numbers[connection] = self._connections
        return number


def _interval(spent_s: float) -> float:
    """Returns the seconds until the next look, after one that took so many."""
    return max(INTERVAL_SECONDS, min(spent_s / SHARE_MAX, INTERVAL_SECONDS_MAX))


def _mark(consumer: ConsumerSums) -> tuple[int, int] | None:
    """Returns what changes whenever a consumer takes something; None if nothing waits for it."""
    if consumer.connection is None:
        return None
    return (consumer.sent, consumer.credited) if consumer.unhandled or consumer.sent < consumer.visible else None
