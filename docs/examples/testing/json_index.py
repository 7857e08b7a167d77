"""An index that keeps keys, values and positions in one JSON file."""

import json
import os

from tailrace import Positions
from tailrace.indexes.checkpoint import Checkpoint


class JsonIndex:
    """Follows a feed into the file ``path``, which is replaced as a whole."""

    def __init__(self, path):
        self._path = path
        self.rows = {}  # {key: (value, partition, seq)}

    def open(self):
        self.rows, self._positions = {}, None
        if self._path.exists():
            stored = json.loads(self._path.read_text())
            self.rows = {
                key.encode("latin-1"): (value.encode("latin-1"), partition, seq)
                for key, value, partition, seq in stored["rows"]
            }
            self._positions = Positions.parse(stored["positions"]) if stored["positions"] else None
        return Checkpoint(self._positions) if self._positions else None

    def apply(self, mutations, checkpoint):
        rows = dict(self.rows)
        for new in mutations:
            _, partition, seq = rows.get(new.key, (None, -1, 0))
            if partition == new.partition and seq > new.seq:
                continue  # an older one than the one that is held
            if new.value is None:
                rows.pop(new.key, None)
            else:
                rows[new.key] = (new.value, new.partition, new.seq)
        self._store(rows, checkpoint.positions)

    def rollback(self, partition, seq):
        rows = {
            key: (row[0], row[1], 0 if row[1] == partition and row[2] > seq else row[2])
            for key, row in self.rows.items()
        }
        self._store(rows, self._positions)

    def clear(self, partition):
        rows = {key: row for key, row in self.rows.items() if row[1] != partition}
        self._store(rows, self._positions and self._positions.without(partition))

    def close(self):
        pass

    def _store(self, rows, positions):
        stored = {
            "positions": str(positions) if positions else "",
            "rows": [[key.decode("latin-1"), row[0].decode("latin-1"), *row[1:]] for key, row in rows.items()],
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(stored))
        os.replace(new, self._path)
        self.rows, self._positions = rows, positions
