"""A file of a later release is refused by its name and version, by every command, and nothing is changed."""

import json
import re
import struct
from pathlib import Path

import pytest
import xxhash
from tests.tailrace_server.made_directory import DATA
from tests.tailrace_server.offline.damage import contents_of

import tailrace
from tailrace.model.failover import FailoverLog
from tailrace_server.coordination.coordinator import Put
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.identity import load
from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.host.clock import SystemClock
from tailrace_server.host.disk import read_file, write_atomically
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.journal.held import HeldMark, store_held
from tailrace_server.offline import format_versions
from tailrace_server.offline.backup import backup
from tailrace_server.offline.format_versions import FORMATS, NewerFormat, format_of, newer_files, version_of
from tailrace_server.offline.repair import repair
from tailrace_server.offline.repairing_mark import RepairingMark
from tailrace_server.offline.restore import restore
from tailrace_server.offline.verify import verify
from tailrace_server.publishing.stage_file import encode_header
from tailrace_server.replication.membership import Membership, MembershipFile
from tailrace_server.upkeep.ahead_file import AheadFile

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "versions.md"


@pytest.fixture(scope="module")
def every_file(stopped):
    """A directory with a file of each format, on a disk of its own; it is not one that a node would leave."""
    disk = stopped.disk.fork()
    identity = load(disk, DATA)
    MembershipFile(disk, DATA, identity.placement_id).store(Membership(term=7))
    StaticStore(disk, f"{DATA}/CLUSTER").write((), (Put("key", b"value"),))
    store_held(disk, DATA, HeldMark((1, 64), {}))
    disk.make_directory(f"{DATA}/staging")
    write_atomically(disk, f"{DATA}/staging/{'ab' * 16}.open", encode_header(bytes(16), bytes(16)))
    partition = next(path for path in contents_of(disk) if path.endswith("/MANIFEST")).rpartition("/")[0]
    AheadFile.create(disk, f"{partition}/AHEAD", bytes(16), 0, 5, FailoverLog(), bytes(16))
    for name in (marks.RESTORED_NAME, marks.RESTORING_NAME, marks.OF_SET_NAME):
        marks.mark(disk, DATA, name)
    RepairingMark("20260131-154500", bytes(16), None).store(disk, DATA)
    write_atomically(disk, f"{DATA}/BACKUP", seal("tailrace backup", 1, {}))
    return disk


def with_file(stopped, path, content):
    disk = stopped.disk.fork()
    place = f"{DATA}/{path}"
    disk.make_directory(place.rpartition("/")[0])
    write_atomically(disk, place, content)
    return disk


def by_format(disk):
    """A path of each format in the directory."""
    return {format_of(path): path for path in format_versions.files_with_format(disk, DATA)}


def newer(data, format, version):
    """The content of a file with another version, whole as a later release would write it."""
    if format.magic:
        offset, size = (8, 4) if format is format_versions.AHEAD else (4, 2)
        header_bytes = 56 if format is format_versions.AHEAD else struct.unpack_from("<H", data, 6)[0]
        head = data[:offset] + version.to_bytes(size, "little") + data[offset + size : header_bytes - 8]
        return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + data[header_bytes:]
    if data.startswith(b'{"format"'):
        kind = json.loads(data.partition(b"\n")[0])["format"]
        return seal(kind, version, {**unseal(data, kind, format.version), "of_a_later_release": [1]})
    value = {**json.loads(data), "version": version, "of_a_later_release": [1]}
    value.pop("checksum")
    return json.dumps({**value, "checksum": f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}"}).encode()


def test_every_format_is_in_the_directory_with_its_present_version(every_file):
    found = by_format(every_file)
    assert set(found) == set(FORMATS)
    plain = {format_versions.JOURNAL: 1, format_versions.SEGMENT: 1}  # without rows that need a later version
    assert {format: version_of(every_file, DATA, path) for format, path in found.items()} == {
        format: plain.get(format, format.version) for format in FORMATS
    }
    assert newer_files(every_file, DATA) == []


def attempts(disk):
    """Everything that could change a directory, or copy it."""
    made = disk.fork()
    made.make_directory("/elsewhere")
    return {
        "repair": lambda: repair(disk, DATA, SystemRandomness(), SystemClock(), "20260131-154500"),
        "backup": lambda: backup(disk, DATA, "/target", 0),
        "restore": lambda: restore(disk, DATA, "/target", SystemRandomness()),
    }


@pytest.mark.parametrize("format", FORMATS, ids=[format.name + " " + format.files[-8:] for format in FORMATS])
def test_a_newer_file_is_refused_by_name_and_nothing_changes(stopped, every_file, format):
    path = by_format(every_file)[format]
    place = f"{DATA}/{path}"
    content = newer(read_file(every_file, place), format, format.version + 1)
    disk = with_file(stopped, path, content)
    if format.files == "BACKUP":
        tries = attempts(disk)
    else:
        tries = {**attempts(disk), "start": lambda: stopped.start_on(disk)}
        del tries["restore"]
    before = contents_of(disk)
    for what, attempt in tries.items():
        with pytest.raises(NewerFormat) as refused:
            attempt()
        told = str(refused.value)
        assert place in told, what
        assert f"has version {format.version + 1} of the format {format.name!r}" in told
        assert f"tailrace {tailrace.__version__} knows versions up to {format.version}" in told
        assert "use the release that wrote it" in told
        assert contents_of(disk) == before, f"{what} changed something"
    report = verify(disk, DATA)
    [(file, finding)] = report.problems
    assert (file.path, file.version) == (path, format.version + 1)
    assert "not damage" in finding.means
    assert contents_of(disk) == before


@pytest.mark.parametrize("format", FORMATS, ids=[format.name + " " + format.files[-8:] for format in FORMATS])
def test_a_changed_digit_or_bit_of_the_version_is_damage(stopped, every_file, format):
    """Only the ids of NODE are below its checksum, so a changed version of it counts as newer."""
    if format.files == "NODE":
        pytest.skip("NODE's checksum is of its ids")
    path = by_format(every_file)[format]
    data = bytearray(read_file(every_file, f"{DATA}/{path}"))
    if format.magic:
        data[8 if format is format_versions.AHEAD else 4] ^= 8
    else:
        place = re.search(rb'"version": ?', bytes(data)).end()
        data[place] += 1
    assert newer_files(with_file(stopped, path, bytes(data)), DATA) == []


def test_verify_names_the_version_of_each_file(stopped):
    report = verify(stopped.disk.fork(), DATA)
    told = {file.kind: file.to_json()["version"] for file in report.files}
    assert told == {
        "node": 1,
        "uptime": 1,
        "mark": 1,
        "lock": None,
        "journal": 1,
        "feed": 1,
        "manifest": 1,
        "segment": 1,
    }
    assert report.versions("segment") == [1]


def test_the_page_has_every_format_with_its_version():
    rows = re.findall(r"^\| `([^|]+)` \| \[[^|]+\]\([^|]+\) \| ([0-9]+)[^|]* \|", PAGE.read_text(), re.M)
    told = {files.replace("`", ""): int(version) for files, version in rows}
    assert {format.files: format.version for format in FORMATS}.items() <= told.items()
