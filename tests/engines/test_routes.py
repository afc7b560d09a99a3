"""The routing table: which row applies to which training, on a CPU by its checks and on a GPU by its conditions."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.local import Local
from coterie.engines import routes
from coterie.engines.fused import gpu_route
from coterie.engines.routes import TABLE, Case, Row, choose_ask_route, choose_engine, choose_route, name_kind
from coterie.engines.world import World
from coterie.methods.moon import MOONRule
from coterie.testing import worlds

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FEDERATION = worlds.make_federation()
IMAGES = FEDERATION.replace(x=np.resize(FEDERATION.x, (len(FEDERATION.x), 8, 8)))
RULE = MOONRule(mu=1.0, temperature=0.5)


def made(*layers: nn.Module) -> World:
    return worlds.make_custom_world(FEDERATION, lambda: nn.Sequential(*layers))


DENSE, DEEP, CNN = World.from_spec(FEDERATION, "mlp(6)"), World.from_spec(FEDERATION, "mlp(6,5,4)"), World.from_spec(IMAGES, "cnn")
SMOOTH = made(nn.Linear(worlds.FEATURES, 4), nn.Tanh(), nn.Linear(4, worlds.CLASSES))
NORMED = made(nn.Linear(worlds.FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, worlds.CLASSES))
DRAWING = made(nn.Dropout(0.5), nn.Linear(worlds.FEATURES, worlds.CLASSES))
LARGE = made(nn.Linear(worlds.FEATURES, 900_000), nn.Tanh(), nn.Linear(900_000, worlds.CLASSES))


@pytest.mark.parametrize(
    ("world", "local", "row"),
    [
        (CNN, Local(augment="flip"), "augmented images"),
        (DENSE, Local(), "dense network with at most two hidden layers, SGD, CPU"),
        (CNN, Local(), "convolutions, CPU"),
        (DENSE, Local(optimizer="adamw"), "AdamW"),
        (SMOOTH, Local(rule=RULE), "local rule of a method"),
        (NORMED, Local(rule=RULE), "local rule that cannot be stacked"),
        (DEEP, Local(), "any other module"),
        (DENSE, Local(optimizer="adam"), "any other module"),
        (NORMED, Local(), "module that mixes samples (batch norm)"),
        (DRAWING, Local(), "all others"),
    ],
)
def test_rows_on_a_cpu(world: World, local: Local, row: str) -> None:
    found = choose_route(world, local, CPU)
    assert found.row is not None
    chosen = TABLE[found.row - 1]
    assert chosen.condition == row
    assert str(found) == f"{chosen.route}: {chosen.backend}"
    assert found.why.startswith(chosen.why)


def test_the_reason_of_a_check_that_failed_is_kept() -> None:
    assert re.search(r"^only batches of equal size are stacked \(.+\)$", choose_route(NORMED, Local(), CPU).why)
    assert "differ" in choose_route(DRAWING, Local(), CPU).why or "random" in choose_route(DRAWING, Local(), CPU).why


def first_row(world: World, local: Local) -> Row:
    return next(row for row in TABLE if row.applies(Case(world, local, GPU)))


@pytest.mark.parametrize(
    ("world", "local", "route"),
    [
        (CNN, Local(augment="flip"), "captured: cuda graph"),
        (CNN, Local(augment="flip", optimizer="adamw"), "loop: autograd"),
        (CNN, Local(augment="flip", rule=RULE), "loop: autograd"),
        (DENSE, Local(), "fused: triton"),
        (DENSE, Local(rule=RULE), "stacked: vmap"),
        (DENSE, Local(optimizer="adam"), "stacked: layer kernels"),
        (CNN, Local(), "stacked: layer kernels"),
        (DEEP, Local(), "stacked: layer kernels"),
        (SMOOTH, Local(), "stacked: vmap"),
        (SMOOTH, Local(optimizer="adamw"), "loop: autograd"),
        (LARGE, Local(), "captured: cuda graph"),
        (LARGE, Local(rule=RULE), "loop: autograd"),
    ],
)
def test_conditions_on_a_gpu(world: World, local: Local, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_route, "is_available", lambda: True)
    row = first_row(world, local)
    assert f"{row.route}: {row.backend}" == route


def test_a_check_that_fails_leads_to_the_next_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(row if row.check is None else Row(**{**vars(row), "check": lambda case: "it differs"}) for row in TABLE)
    monkeypatch.setattr(routes, "TABLE", rows)
    for world, local, why in (
        (LARGE, Local(), "a large model fills the device (it differs)"),
        (CNN, Local(), "no stacked training agrees with the loop (it differs)"),
    ):
        found = choose_route(world, local, GPU)
        assert (str(found), found.why) == ("loop: autograd", why)


def test_a_last_batch_of_one_sample_goes_to_the_loop_where_the_model_needs_two() -> None:
    def ask(world: World, smallest: int, samples: list[int]) -> str:
        return str(choose_ask_route(choose_route(world, Local(), CPU), np.array(samples), 4, lambda: smallest))

    assert ask(NORMED, 2, [8, 9]) == "loop: autograd"
    assert ask(NORMED, 2, [8, 10]) == ask(NORMED, 1, [8, 9]) == "stacked: vmap, exact"
    assert ask(DENSE, 2, [8, 9]) == "fused: numba"


@pytest.mark.parametrize(
    ("engine", "device", "chosen"),
    [("auto", "cpu", "batched"), ("loop", "cuda", "loop"), ("auto", "mps", "loop"), ("auto", "cuda:1", "batched")],
)
def test_engines(engine: str, device: str, chosen: Any) -> None:
    assert choose_engine(engine, device) == chosen


def test_kinds_have_what_a_route_depends_on() -> None:
    assert name_kind("mclr", Local()) == "mclr with sgd"
    assert name_kind("cnn", Local(optimizer="adam", rule=RULE, augment="flip")) == "cnn with adam by MOONRule, augmented by flip"
