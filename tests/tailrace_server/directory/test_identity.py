import json

import pytest

from tailrace_server.directory.identity import BadDirectory, Identity, load, new_identity, store
from tailrace_server.host.disk import RealDisk
from tailrace_server.host.randomness import SystemRandomness


def make(directory, randomness=None):
    identity = new_identity(randomness or SystemRandomness())
    store(RealDisk(), str(directory), identity)
    return identity


def test_it_is_made_once(tmp_path):
    class Numbers:
        count = 0

        def token(self, size):
            self.count += 1
            return bytes([self.count]) * size

    made = make(tmp_path, Numbers())
    assert made == Identity(b"\1" * 16, b"\2" * 16, b"\3" * 16)
    assert load(RealDisk(), str(tmp_path)) == made


def test_one_of_an_earlier_version_without_a_checksum_is_read(tmp_path):
    made = make(tmp_path)
    path = tmp_path / "NODE"
    members = json.loads(path.read_text())
    del members["checksum"]
    path.write_text(json.dumps(members))
    assert load(RealDisk(), str(tmp_path)) == made


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda value: "not JSON", "is damaged"),
        (lambda value: json.dumps([]), "is damaged"),
        (lambda value: json.dumps({**value, "version": 9}), "has version 9; this program reads version 1"),
        (lambda value: json.dumps({**value, "node_id": "ab"}), "an id is not 16 bytes"),
        (lambda value: json.dumps({**value, "node_id": "xy" * 16}), "is damaged"),
        (lambda value: json.dumps({"version": 1}), "is damaged"),
        (lambda value: json.dumps({**value, "node_id": "ab" * 16}), "its checksum is wrong"),
        (lambda value: json.dumps({**value, "name": "orders"}), "it has unknown members"),
    ],
)
def test_a_damaged_one_stops_the_start(tmp_path, damage, match):
    make(tmp_path)
    path = tmp_path / "NODE"
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(BadDirectory, match=match):
        load(RealDisk(), str(tmp_path))
