"""Settings: which source wins, what is wrong in each, and where."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tailrace.cli.commands import run
from tailrace.cli.errors import WrongUsage
from tailrace.link.address import Address
from tailrace.model.quantities import Unit, quantity, show_quantity
from tailrace_server.config import Failover, Limits
from tailrace_server.node import settings
from tailrace_server.node.configure import configure, load_settings
from tailrace_server.node.flags import given_flags
from tailrace_server.node.serve_settings import LogLevel, ServeSettings, Settings
from tailrace_server.node.settings import WrongSettings, load, paths, show_value, value_of
from tailrace_server.node.toml_lines import line_of
from tailrace_server.setting import Setting


@pytest.fixture(autouse=True)
def no_names_of_this_shell(monkeypatch):
    for path in paths():
        monkeypatch.delenv("TAILRACE_" + "_".join(path).upper(), raising=False)


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "tailrace.toml"
        path.write_text(text)
        return str(path)

    return write


def problems(file, flags=None):
    with pytest.raises(WrongSettings) as caught:
        load(file, flags or {})
    return caught.value.problems


def test_without_any_source_all_are_defaults():
    loaded = load(None, {})
    assert loaded.settings == Settings()
    assert {loaded.source_of(path) for path in paths()} == {None}


@pytest.mark.parametrize("path", [("log_level",), ("limits", "feeds_max"), ("storage", "flush_age_s")])
def test_options_win_over_the_environment_and_it_over_the_file(write, monkeypatch, path):
    values = {"file": "11", "environment": "12", "flag": "13"}
    if path == ("log_level",):
        values = {"file": "debug", "environment": "warning", "flag": "error"}
    expected = {name: LogLevel(value) if path == ("log_level",) else int(value) for name, value in values.items()}
    table = f"[{path[0]}]\n" if len(path) == 2 else ""
    file = write(f'{table}{path[-1]} = "{values["file"]}"\n')
    flags = {path[0]: values["flag"]} if len(path) == 1 else {path[0]: {path[1]: values["flag"]}}

    def found(file, flags):
        loaded = load(file, flags)
        return value_of(loaded.settings, path), loaded.source_of(path).name

    assert found(file, {}) == (expected["file"], "file")
    monkeypatch.setenv("TAILRACE_" + "_".join(path).upper(), values["environment"])
    assert found(file, {}) == (expected["environment"], "environment")
    assert found(file, flags) == (expected["flag"], "flag")


def test_settings_of_one_table_come_from_several_sources(write, monkeypatch):
    file = write("[limits]\nfeeds_max = 1\nstreams_max = 2\n")
    monkeypatch.setenv("TAILRACE_LIMITS_STREAMS_MAX", "3")
    limits = load(file, {"limits": {"barriers_max": "4"}}).settings.limits
    assert limits == Limits(feeds_max=1, streams_max=3, barriers_max=4)


def test_an_empty_name_of_the_environment_counts_as_none(monkeypatch):
    monkeypatch.setenv("TAILRACE_LISTEN", "")
    assert load(None, {}).settings == Settings()


def test_lists(write, monkeypatch):
    assert load(write('members = ["a:1", "b:1"]'), {}).settings.serve.members == ("a:1", "b:1")
    monkeypatch.setenv("TAILRACE_MEMBERS", "a:1, c:1")
    assert load(None, {}).settings.serve.members == ("a:1", "c:1")
    assert load(None, {"members": ["a:1,d:1"]}).settings.serve.members == ("a:1", "d:1")
    [problem] = problems(write("members = 3"), {"members": [3]})
    assert "has to be a list" in problem.what


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("[limits]\n\nfeeds_mx = 3", 3, "limits.feeds_mx", "did you mean limits.feeds_max?"),
        ("[limit]\nfeeds_max = 3", 1, "limit", "did you mean limits?"),
        ("limits.feeds_mx = 3", 1, "limits.feeds_mx", "did you mean limits.feeds_max?"),
        ("lisen = ':1'", 1, "lisen", "did you mean listen?"),
        ("quite_another = 1", 1, "quite_another", "is no setting"),
        ("[limits]\nmemory_bytes_max = 1", 2, "limits.memory_bytes_max", "it belongs to [storage]"),
        ("[storage]\nlisten = ':1'", 2, "storage.listen", "it belongs above all tables"),
        ("[limits]\nfeeds_max = 0", 2, "limits.feeds_max", "is 0, and has to be 1 or more"),
        ("[limits]\npartitions_max = 9999", 2, "limits.partitions_max", "is 9999, and has to be 4_096 or less"),
        ("[storage]\nsegment_bytes = '1 KiB'", 2, "storage.segment_bytes", "is 1024, and has to be 64 KiB or more"),
        ("[storage]\nflush_age_s = '1 KiB'", 2, "storage.flush_age_s", "'KiB' is no unit of it"),
        ("[storage]\nflush_age_s = true", 2, "storage.flush_age_s", "is True, which is no number"),
        ("[limits]\nfeeds_max = 1.5", 2, "limits.feeds_max", "1.5"),
        ("limits = 3", 1, "limits", "is 3"),
        ("log_level = 'loud'", 1, "log_level", "'debug', 'info', 'warning' or 'error'"),
        ("listen = 3", 1, "listen", "valid string"),
        ("restored = true", 1, "restored", "give the option"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(write, text, line, key, says):
    file = write(text)
    [problem] = problems(file)
    assert (problem.place, problem.key) == (f"{file}:{line}", key)
    assert says in problem.what


def test_a_table_is_not_proposed_for_a_setting(write):
    [problem] = problems(write("[limits]\nnope = 1"))
    assert problem.what == "is no setting"


def test_all_problems_are_named(write, monkeypatch):
    monkeypatch.setenv("TAILRACE_LIMITS_STREAMS_MAX", "none")
    found = problems(write("[limits]\nfeeds_max = 0\nbarrier_max = 1"), {"log_level": "loud"})
    assert sorted(problem.key for problem in found) == [
        "limits.barrier_max",
        "limits.feeds_max",
        "limits.streams_max",
        "log_level",
    ]
    assert {problem.place for problem in found} >= {"TAILRACE_LIMITS_STREAMS_MAX", "--log-level"}


@pytest.mark.parametrize(("text", "says"), [("listen = ", "is no TOML"), ("a = 1\na = 2", "is no TOML")])
def test_a_file_that_is_no_toml(write, text, says):
    [problem] = problems(write(text))
    assert says in problem.what


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    [problem] = problems(str(tmp_path / "f"))
    assert "is no TOML" in problem.what


def test_a_secret_is_not_shown():
    about = Setting(secret=True)
    assert show_value("open sesame", about) == "***"
    assert show_value("", about) == ""


def test_names_of_the_environment_that_are_no_settings(monkeypatch):
    monkeypatch.setenv("TAILRACE_PORT_4700_TCP_ADDR", "10.0.0.1")  # of an orchestrator
    monkeypatch.setenv("TAILRACE_URL", "tailrace://a")
    monkeypatch.setenv("TAILRACE_LIMIT_FEEDS_MAX", "3")
    assert settings.unknown_names() == {"TAILRACE_LIMIT_FEEDS_MAX": "TAILRACE_LIMITS_FEEDS_MAX"}
    assert load(None, {}).settings == Settings()


def test_any_setting_can_be_set_by_an_option():
    flags = given_flags({"listen": ":1", "http": None, "ws_origin": []}, ["limits.feeds_max=3", "cluster = shop"])
    assert flags == {"listen": ":1", "limits": {"feeds_max": "3"}, "cluster": "shop"}
    for wrong in ("limits.feeds_max", "=3"):
        with pytest.raises(WrongUsage, match="write NAME=VALUE"):
            given_flags({}, [wrong])


@pytest.mark.parametrize(
    ("value", "unit", "number"),
    [
        (3, Unit.NONE, 3),
        ("1_000", Unit.NONE, 1_000),
        ("1.5 GiB", Unit.BYTES, 3 * 2**29),
        ("20MiB", Unit.RATE, 20 * 2**20),
        ("20 MiB/s", Unit.RATE, 20 * 2**20),
        ("3 MB", Unit.BYTES, 3_000_000),
        ("250 ms", Unit.SECONDS, 0.25),
        ("0.05 ms", Unit.SECONDS, 0.00005),
        ("7d", Unit.SECONDS, 604_800),
        ("5 min", Unit.SECONDS, 300),
        ("-1", Unit.SECONDS, -1),
    ],
)
def test_quantities(value, unit, number):
    assert quantity(value, unit) == number
    assert quantity(show_quantity(number, unit), unit) == number
    assert "e-" not in show_quantity(number, unit)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("3 s", Unit.BYTES),
        ("3 MiB/s", Unit.BYTES),
        ("x", Unit.NONE),
        (True, Unit.NONE),
        ("3 k", Unit.NONE),
        ("1e400", Unit.SECONDS),
        ("-1e400", Unit.NONE),
        ("1e300 TiB", Unit.BYTES),
        ("9" * 400, Unit.BYTES),
        ("9" * 400 + " ms", Unit.SECONDS),
    ],
)
def test_what_is_no_quantity(value, unit):
    with pytest.raises(ValueError, match="write a number"):
        quantity(value, unit)


def test_every_default_is_in_its_range_and_can_be_written_as_it_is_shown():
    for path, about in paths().items():
        value = value_of(Settings(), path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert quantity(show_value(value, about), about.unit) == value
            assert about.least is None or value >= about.least, path
            assert about.most is None or value <= about.most, path


def test_lines_of_a_file():
    text = "a = 1\n[one] # first\nb.c = 2\n\n[ two . three ]\n'd' = 3\n"
    assert [line_of(text, path) for path in (("a",), ("one",), ("one", "b", "c"), ("two", "three", "d"))] == [
        1,
        2,
        3,
        6,
    ]
    assert line_of(text, ("none",)) == 0


# What a node makes of its settings


def configured(**given):
    return configure(load_settings(None, given_flags(given, None)).settings)


def test_the_ports_beside_that_of_listen():
    def ports(listen):
        config = configured(listen=listen, insecure=True).config
        return config.http, config.ws

    assert ports("127.0.0.1:4700") == (("127.0.0.1", 4780), ("127.0.0.1", 4790))
    assert ports("10.0.0.1:4703") == (("127.0.0.1", 4783), ("127.0.0.1", 4793))
    assert ports(":0") == (("127.0.0.1", 0), ("127.0.0.1", 0))
    assert ports(":65500") == (("127.0.0.1", 0), ("127.0.0.1", 0))
    assert configured(listen=":4701", http="10.0.0.1", insecure=True).config.http == ("10.0.0.1", 4781)


def test_the_nodes_of_one_machine_do_not_collide():
    taken = []
    for port in range(4700, 4710):
        config = configured(listen=f":{port}").config
        taken += [config.listen, config.http, config.ws]
    assert len(set(taken)) == 30


def test_a_node_is_made_of_its_settings(monkeypatch):
    monkeypatch.setenv("TAILRACE_MEMBERS", "127.0.0.1:4700,b:1")
    monkeypatch.setenv("TAILRACE_FAILOVER", "manual")
    config = configured(data="x", http="off", allow_host=["A.example"]).config
    assert (config.data, config.http) == ("x", None)
    assert config.members == (Address("127.0.0.1", 4700), Address("b", 1))
    assert config.replication.failover is Failover.MANUAL
    assert configured(allow_host=["A.example"]).hosts == {"a.example", "127.0.0.1"}


# The commands


def test_check_of_a_good_file(write, capsys):
    file = write('listen = ":4701"\n[storage]\nmemory_bytes_max = "64 MiB"\n')
    assert run(["config", "check", file]) == 0
    assert capsys.readouterr().out == f"{file}: ok\n"


def test_check_names_what_is_wrong(write, capsys, monkeypatch):
    monkeypatch.setenv("TAILRACE_LIMITS_FEEDS_MAX", "3")  # does not count
    file = write("[limits]\nfeeds_max = 0\n[storge]\n")
    assert run(["config", "check", file]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{file}:2: limits.feeds_max is 0, and has to be 1 or more",
        f"{file}:3: storge is no setting; did you mean storage?",
    ]
    assert run(["config", "check", file, "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["key"] == "limits.feeds_max"


def test_check_finds_what_contradicts_itself(write, capsys):
    file = write("voters = 3\n")
    assert run(["config", "check", file]) == 1
    assert "--voters is for sets of --cluster-store" in capsys.readouterr().out


def test_check_of_a_file_that_is_not_there(tmp_path, capsys):
    assert run(["config", "check", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_show(write, capsys, monkeypatch):
    monkeypatch.setenv("TAILRACE_STORAGE_CHECK_RATE", "1 MiB")
    file = write("[limits]\nfeeds_max = 100\n")
    assert run(["config", "show", "--config", file, "--set", "limits.streams_max=7", "--listen", ":1", "--json"]) == 0
    rows = {row["setting"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert len(rows) == len(paths())
    found = {name: (rows[name]["value"], rows[name]["source"], rows[name]["place"]) for name in rows}
    assert found["limits.feeds_max"] == (100, "file", f"{file}:2")
    assert found["limits.streams_max"] == (7, "flag", "--set limits.streams_max")
    assert found["listen"] == (":1", "flag", "--listen")
    assert found["storage.check_rate"] == (2**20, "environment", "TAILRACE_STORAGE_CHECK_RATE")
    assert found["storage.segment_bytes"] == (16 * 2**20, "default", "")
    assert run(["config", "show"]) == 0
    assert "16 MiB" in capsys.readouterr().out


def test_show_refuses_what_serve_refuses(capsys):
    assert run(["config", "show", "--set", "limits.feeds_max=0"]) == 2
    assert "--set limits.feeds_max: limits.feeds_max is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "of_set", [{"members": ("127.0.0.1:4700", "127.0.0.1:4701")}, {"cluster_store": "etcd://a:2379"}]
)
def test_members_that_require_tokens_have_to_know_each_other(of_set, tmp_path):
    given = ServeSettings(data="data", auth=True, **of_set)
    with pytest.raises(WrongUsage, match="--auth in a set needs --peer-token-file"):
        configure(Settings(given))
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    assert configure(Settings(dataclasses.replace(given, peer_token_file=str(secret)))).config.peer_token == "s" * 64
