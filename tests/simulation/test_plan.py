"""The choices of a seed."""

import pytest

from .plan import ANY_SET, plan_run
from .stories.table import STORIES


@pytest.mark.parametrize("seed", range(20))
def test_a_set_of_chosen_size_is_repeated_by_its_number_of_nodes(seed):
    plan = plan_run(seed, ANY_SET)
    assert plan_run(seed, plan.nodes) == plan
    assert plan.command == f"make simulate NODES={plan.nodes} SEED={seed}"


def test_a_seed_runs_one_node_unless_it_is_told_otherwise():
    plan = plan_run(4)
    assert plan.names == ["node-1"]
    assert not plan.is_set
    assert plan.command == "make simulate SEED=4"


def test_sets_of_several_sizes_are_chosen():
    assert {plan_run(seed, ANY_SET).nodes for seed in range(50)} == {2, 3, 5}


def test_spare_nodes_come_to_sets_of_three_or_more_and_make_a_run_lose_fewer_disks():
    plans = [plan_run(seed, ANY_SET) for seed in range(50)]
    assert {(plan.nodes, plan.spares) for plan in plans} == {(2, 0)} | {(n, s) for n in (3, 5) for s in (0, 1, 2)}
    assert all(len(plan.names) == plan.nodes + plan.spares for plan in plans)
    assert all(plan.founders == plan.names[: plan.nodes] for plan in plans)
    lost = {(plan.nodes, bool(plan.spares)): plan.lost_disks_max for plan in plans}
    assert lost == {(2, False): 0, (3, False): 1, (3, True): 1, (5, False): 2, (5, True): 1}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_says_which_set_it_needs(name):
    plan = plan_run(7, story=STORIES[name])
    assert plan.nodes == STORIES[name].nodes
    assert plan.command == f"make simulate STORY={name} SEED=7"
