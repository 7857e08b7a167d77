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


@pytest.mark.parametrize("name", STORIES)
def test_a_story_says_which_set_it_needs(name):
    plan = plan_run(7, story=STORIES[name])
    assert plan.nodes == STORIES[name].nodes
    assert plan.command == f"make simulate STORY={name} SEED=7"
