"""PostgreSQL by psycopg: rows into a table, and out of it by logical replication (pgoutput)."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from _peers.clients.client import Put, Row, of, put_at_once, run
from _peers.open_loop import Schedule, put_on_time

_ROWS_PER_COMMIT = 1_000
_UPSERT = "INSERT INTO {} VALUES (%b, %b) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
# An XLogData message of the stream: its kind, three positions of 8 bytes; then the first letter of pgoutput's message.
_HEAD_BYTES = 25
_STATUS_SECONDS = 1.0
_PAUSE_SECONDS = 0.01


class Client:
    """A log is a table with a publication, and a slot for each of its readers."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self, putters: int = 1) -> None:
        self._client = psycopg.connect(self._address, autocommit=True)
        self._many = []
        if putters > 1:
            connect = psycopg.AsyncConnection.connect
            self._many = await asyncio.gather(*(connect(self._address, autocommit=True) for _ in range(putters)))

    async def close(self) -> None:
        self._client.close()
        for connection in self._many:
            await connection.close()

    async def make(self, log: str, readers: int = 1) -> None:
        self._client.execute(f"CREATE TABLE {log} (key bytea PRIMARY KEY, value bytea NOT NULL)")
        self._client.execute(f"CREATE PUBLICATION {log} FOR TABLE {log}")
        for number in range(readers):
            self._client.execute(f"SELECT pg_create_logical_replication_slot('{log}_{number}', 'pgoutput')")

    async def drop(self, log: str) -> None:
        slots = f"SELECT slot_name, active FROM pg_replication_slots WHERE slot_name LIKE '{log}\\_%'"
        while found := self._client.execute(slots).fetchall():
            for slot, is_active in found:
                if is_active:  # its reader has just left
                    await asyncio.sleep(_PAUSE_SECONDS)
                else:
                    self._client.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        self._client.execute(f"DROP PUBLICATION {log}")
        self._client.execute(f"DROP TABLE {log}")

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        return list(of(rows, _ROWS_PER_COMMIT))

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        upsert = _UPSERT.format(log)
        for batch in of(rows, _ROWS_PER_COMMIT):
            with self._client.transaction(), self._client.cursor() as cursor:
                cursor.executemany(upsert, batch)

    async def write(self, log: str, batches: list[Any]) -> None:
        for batch in batches:
            with self._client.cursor() as cursor, cursor.copy(f"COPY {log} FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["bytea", "bytea"])
                for row in batch:
                    copy.write_row(row)

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        connection = psycopg.connect(self._address + " replication=database", autocommit=True)
        stream = connection.pgconn
        options = f"(proto_version '1', publication_names '{log}', binary 'true')"
        # psycopg has no call for a stream both ways, but hands over the one of libpq.
        begun = stream.exec_(f"START_REPLICATION SLOT {log}_{reader} LOGICAL 0/0 {options}".encode())
        assert begun.status == ExecStatus.COPY_BOTH, begun.error_message
        said, end = time.monotonic(), 0
        while rows > 0:
            data = bytes(stream.get_copy_data(0)[1])
            if data[:1] == b"w":
                end = int.from_bytes(data[9:17], "big")
                if data[_HEAD_BYTES : _HEAD_BYTES + 1] in (b"I", b"U"):
                    _row(data)
                    rows -= 1
            if time.monotonic() - said > _STATUS_SECONDS or (data[:1] == b"k" and data[17]):
                said = time.monotonic()
                stream.put_copy_data(struct.pack("!cQQQQB", b"r", end, 0, 0, 0, 0))
                stream.flush()
        connection.close()

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        self._client.execute(_UPSERT.format(log), (key, value))

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        return await put_at_once(self._puts(log), rows)

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        return await put_on_time(self._puts(log), rows, schedule)

    def _puts(self, log: str) -> list[Put]:
        upsert = _UPSERT.format(log)

        def by(connection: Any) -> Put:
            return lambda key, value: connection.execute(upsert, (key, value))

        return [by(connection) for connection in self._many]


def _row(data: bytes) -> Row:
    """Returns key and value of an INSERT or UPDATE: relation, 'N', the number of columns, and each with its length."""
    at = _HEAD_BYTES + 1 + 4 + 1 + 2
    columns = []
    for _ in range(2):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        columns.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return columns[0], columns[1]
