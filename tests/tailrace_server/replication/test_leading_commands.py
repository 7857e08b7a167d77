"""``tailrace promote`` and ``tailrace handover``, called on a set of three."""

import json
from importlib.metadata import EntryPoint

import pytest
import trio
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config

from tailrace.cli.commands import GROUP, invoke, make_app

pytestmark = pytest.mark.slow

COMMANDS = {name: EntryPoint(name, f"tailrace.cli.leading:{name}", GROUP) for name in ("promote", "handover")}


@pytest.fixture
def call(capsys):
    """An async function that runs a command in a thread: exit code, what it has printed, what it has complained of."""

    async def call(*arguments):
        capsys.readouterr()
        code = await trio.to_thread.run_sync(invoke, make_app(COMMANDS), list(map(str, arguments)))
        return code, *capsys.readouterr()

    return call


async def test_promote_prints_its_steps_and_what_may_be_lost(members, call):
    await members[0].kill()
    code, out, err = await call("promote", "--node", members[1].address)
    assert (code, err) == (0, "")
    *steps, leads, lost = out.splitlines()
    assert len(steps) >= 3
    assert all(step.startswith("  ") for step in steps)
    assert leads == f"{members[1].address} leads in term {members[1].node.leaderships.system.term}."
    assert lost == (
        f"What may be lost: nothing at level quorum; at levels disk and memory what only {members[0].address} had"
    )


async def test_promote_says_why_it_does_not(members, call):
    await members[0].kill()
    await members[2].kill()
    code, out, err = await call("promote", "--node", members[1].address)
    assert (code, out) == (1, "")
    assert err.startswith("tailrace: refused: 1 of the 2 voters")
    assert "--force" in err
    code, out, _ = await call("promote", "--node", members[1].address, "--force", "--json")
    answer = json.loads(out)
    assert (code, answer["term"]) == (0, members[1].node.leaderships.system.term)
    assert "quorum" in answer["may_be_lost"]


async def test_handover_finds_the_leader_by_any_node(members, call):
    code, out, err = await call("handover", "--to", members[2].address, "--node", members[1].address)
    assert (code, err) == (0, "")
    term = members[2].node.leaderships.system.term
    assert out == (
        f"{members[0].address} has handed over to {members[2].address}, which leads in term {term}. Nothing is lost.\n"
    )
    assert await members.settled() is members[2]


@pytest.mark.parametrize("to", ["nowhere:1", "127.0.0.1:1"])
async def test_handover_to_one_that_is_no_member_is_refused(members, call, to):
    code, _, err = await call("handover", "--to", to, "--url", members.url)
    assert code == 1
    assert f"{to} is no other member of this set" in err
    assert members[0].leads


async def test_commands_to_a_node_that_is_alone(tmp_path, nursery, call):
    [address] = free_addresses(1)
    alone = MadeNode(make_config(tmp_path / "alone", address), nursery)
    await alone.start()
    for arguments in (["promote"], ["handover", "--to", "a:1"]):
        code, _, err = await call(*arguments, "--node", address)
        assert code == 1
        assert "this node is alone" in err


async def test_promote_wants_one_node(call, monkeypatch):
    monkeypatch.setenv("TAILRACE_URL", "tailrace://127.0.0.1:1,127.0.0.1:2")
    code, out, err = await call("promote")
    assert (code, out) == (2, "")
    assert "names 2 nodes: name the new leader with --node" in err
    assert (await call("promote", "--node", "127.0.0.1:1"))[0] == 1, "the one that is named is asked"


async def test_wrong_addresses(call):
    assert (await call("handover", "--to", "a:b"))[0] == 2
    assert (await call("promote", "--node", "a:b"))[0] == 2
