"""Kafka by confluent-kafka."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from _peers.clients.client import Row, of, run
from _peers.open_loop import Schedule

_BATCH_ROWS = 10_000
_SECONDS_MAX = 60.0
_BYTES_MAX = 8 << 20


class Client:
    """A log is a topic of one partition. A putter puts its next row in the callback of the one before."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        self._at = {"bootstrap.servers": address, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
        self._at |= {"message.max.bytes": _BYTES_MAX, "socket.nagle.disable": True, "log_level": 0}

    def _make(self, **settings: Any) -> confluent_kafka.Producer:
        settings = {name.replace("_", "."): value for name, value in settings.items()}
        return confluent_kafka.Producer({**self._at, "acks": "all", **settings})

    async def open(self, putters: int = 1) -> None:
        self._admin = AdminClient(self._at)
        self._admin.list_topics(timeout=_SECONDS_MAX)
        # One by one nothing is waited for. With many under way a pause fills batches: 5 ms are the default.
        self._single = self._make(linger_ms=0 if putters == 1 else 1)
        self._many = self._make(queue_buffering_max_messages=1_000_000)

    async def close(self) -> None:
        for producer in (self._single, self._many):
            producer.flush(_SECONDS_MAX)

    async def make(self, log: str, readers: int = 1) -> None:
        topic = NewTopic(log, num_partitions=1, replication_factor=1, config={"flush.messages": "1"})
        for made in self._admin.create_topics([topic]).values():
            made.result(_SECONDS_MAX)
        for producer in (self._single, self._many):
            while not _knows(producer, log):  # noqa: ASYNC110 - the broker tells nothing
                await asyncio.sleep(0.01)

    async def drop(self, log: str) -> None:
        for dropped in self._admin.delete_topics([log]).values():
            dropped.result(_SECONDS_MAX)

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        return [[{"key": key, "value": value} for key, value in batch] for batch in of(rows)]

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        produce, poll = self._many.produce, self._many.poll
        for key, value in rows:
            while True:
                try:
                    produce(log, value, key, 0)
                    break
                except BufferError:
                    poll(0.01)
        self._settle(log, len(rows))

    async def write(self, log: str, batches: list[Any]) -> None:
        rows = 0
        for batch in batches:
            rows += len(batch)
            while self._many.produce_batch(log, batch, partition=0) < len(batch):
                batch = [row for row in batch if row.pop("_error", None)]
                self._many.poll(0.01)
        self._settle(log, rows)

    def _settle(self, log: str, rows: int) -> None:
        """Waits for all answers. A row that has failed is not in the topic then."""
        assert self._many.flush(_SECONDS_MAX) == 0
        if rows:
            consumer = self._consumer()
            assert consumer.get_watermark_offsets(TopicPartition(log, 0))[1] >= rows, "rows have failed"
            consumer.close()

    def _consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer({**self._at, "group.id": "bench", "enable.auto.commit": False})

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        consumer = self._consumer()
        consumer.assign([TopicPartition(log, 0, 0)])
        while rows > 0:
            for message in consumer.consume(min(rows, _BATCH_ROWS), timeout=_SECONDS_MAX):
                assert message.error() is None, message.error()
                _ = message.key(), message.value()
                rows -= 1
        consumer.close()

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        failed: list[KafkaError] = []
        self._single.produce(log, value, key, 0, on_delivery=lambda error, _: error and failed.append(error))
        assert self._single.flush(_SECONDS_MAX) == 0
        assert not failed, failed

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        producer, left, found = self._single, iter(rows), []

        def put() -> None:
            row = next(left, None)
            if row is not None:
                begin = time.perf_counter()
                producer.produce(log, row[1], row[0], 0, on_delivery=lambda error, _: done(error, begin))

        def done(error: KafkaError | None, begin: float) -> None:
            assert error is None, error
            found.append(time.perf_counter() - begin)
            put()

        for _ in range(putters):
            put()
        while len(found) < len(rows):
            producer.poll(1.0)
        return found

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        producer = self._single

        def done(error: KafkaError | None, number: int) -> None:
            assert error is None, error
            schedule.ended(number)

        def poll() -> None:
            while len(schedule.seconds) < len(rows):
                producer.poll(0.1)

        polling = threading.Thread(target=poll)
        polling.start()
        while not schedule.is_over:
            select.select([schedule.pipe], [], [])
            for number in schedule.take():
                key, value = rows[number]
                producer.produce(log, value, key, 0, on_delivery=lambda error, _, number=number: done(error, number))
        polling.join()
        return schedule.seconds


def _knows(producer: confluent_kafka.Producer, log: str) -> bool:
    topic = producer.list_topics(log, timeout=_SECONDS_MAX).topics.get(log)
    return topic is not None and topic.error is None
