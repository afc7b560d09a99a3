"""What a server knows: a model by name and a roster, never data."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.method import Problem
from coterie.core.model import ModelSpec, read_vector
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.engines.world import World
from coterie.models.catalogue import build_model
from coterie.testing import worlds


def test_a_server_and_a_site_start_from_the_same_numbers() -> None:
    """Both have the text, the shape of a sample and the number of outputs; neither needs the other's objects."""
    server, site = (ModelSpec("mlp(7)", (5,), 3, build_model) for _ in range(2))
    assert server.layout == site.layout
    assert server.initial(4)(1).tobytes() == site.initial(4)(1).tobytes()
    assert server.initial(4)(1).tobytes() != server.initial(5)(1).tobytes()
    assert read_vector(server.build()).shape == (server.layout.size,)


def test_a_module_to_be_written_to_leaves_torchs_generator_alone() -> None:
    spec = ModelSpec("mlp(7)", (5,), 3, build_model)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    spec.module()
    assert spec.layout.size
    assert torch.equal(torch.get_rng_state(), before)
    spec.build()  # by contrast
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_model_without_anything_to_train_is_refused() -> None:
    frozen = ModelSpec("frozen", (5,), 3, lambda text, shape, outputs: nn.Linear(5, 3).requires_grad_(False))
    with pytest.raises(UserError, match="'frozen' has nothing to train"):
        _ = frozen.layout


def test_a_problem_needs_no_data() -> None:
    roster = Roster.from_sizes(["a", "b", "c"], np.array([3, 4, 5]))
    problem = Problem(ModelSpec("mclr", (5,), 3, build_model), lambda round_: roster)
    assert problem.roster is roster
    assert problem.truth_at(3) is None
    ctx = problem.context(Plan(cohort=2), seed=1, round_=4)
    assert len(ctx.cohort()) == 2
    assert (ctx.outputs, ctx.validation, ctx.truth, ctx.layout.size) == (3, False, None, 18)


def test_the_problem_of_a_world_is_its_servers_view() -> None:
    world = worlds.make_world()
    problem = world.problem
    assert problem is world.problem  # the same each time
    assert problem.roster.ids == world.federation.ids
    assert problem.roster.sizes.tolist() == list(worlds.SIZES)
    assert (problem.validation, problem.central) == (True, True)
    bare = World.from_spec(world.federation.replace(validation=None, central=None), "mclr").problem
    assert (bare.validation, bare.central) == (False, False)
    assert problem.initial(2)().tobytes() == world.model.initial(2)().tobytes()
    assert {f.name for f in fields(Problem)} == {
        "model",
        "roster_at",
        "truth_at",
        "validation",
        "central",
        "task",
        "unlabelled",
        "with_unseen",
    }
