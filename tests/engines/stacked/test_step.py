"""Frozen tables of embeddings that a stack has once a seed: the trainings are the same, and many more fit side by side."""

from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.arrays import Floats
from coterie.engines.jobs import TrainingJob
from coterie.engines.routes import choose_stacked_options
from coterie.engines.stacked.cuda_graphs import GraphCache
from coterie.engines.stacked.route import StackedOptions, StackedTrainer
from coterie.engines.stacked.step import Optimizer, find_distinct_rows, find_lookup_table
from coterie.engines.world import World
from coterie.models.lstm import Recurrent
from engines.stacked.stacked_oracle import job_for, noise_world, oracle, worst

WORDS, LONG = 11, 4
SIZES = [5, 9, 1, 14, 3, 8]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def texts(model: str = f"lstm(3,1,2,vocabulary={WORDS},width=5)") -> World:
    world = noise_world("mclr", (LONG,), SIZES)
    tokens = np.random.default_rng(3).integers(0, WORDS, world.federation.x.shape)
    return World.from_spec(world.federation.replace(x=tokens), model)


def route(task: World, **settings: Any) -> StackedTrainer:
    given: dict[str, Any] = {"memory": 1 << 30, "options": StackedOptions(shares_tables=True), **settings}
    federation = task.federation
    return StackedTrainer(task.model.module(), task.loss, torch.as_tensor(federation.x), torch.as_tensor(federation.y), **given)


def several(task: World, **settings: Any) -> TrainingJob:
    """Trainings of two seeds, whose tables differ, each from one of two models that have the seed's table."""
    models = np.stack([task.model.initial(seed)() for seed in (0, 0, 1, 1)])
    table = find_lookup_table(task.model.module(), task.model.layout)
    end = task.model.layout.size if table is None else table.begin
    models[[1, 3], :end] *= 0.5
    return job_for(task, models=models, start=np.array([0, 3, 1, 2, 3, 1]), mu=np.array([0, 0.1, 0, 0, 0.2, 0]), **settings)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("cell", ["lstm(3,1,2", "rnn(3,1"])
def test_trainings_that_share_tables_agree_with_the_float64_loop(cell: str, optimizer: Optimizer, device: str) -> None:
    task = texts(f"{cell},vocabulary={WORDS},width=5)")
    job = several(task, epochs=np.array([3, 1, 2, 2, 4, 1]), batch_size=np.array([4, 3, 9, 5, 1, 8]))
    found = route(task, device=device, dtype=torch.float64)
    assert found.lookup is not None
    assert worst(found.train(job, optimizer), oracle(task, job, optimizer)) < 1e-6
    assert worst(found.train(job, optimizer), oracle(task, job, optimizer)) < 1e-6  # on a GPU from captured steps
    assert np.array_equal(found.train(job, optimizer)[0][:, found.lookup.begin :], job.models[job.start][:, found.lookup.begin :])


def test_captured_steps_find_the_tables_of_the_job_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shapes, other models with other tables: what was captured reads where the tables were laid the first time."""
    monkeypatch.setattr(GraphCache, "_capture", lambda *_: None)
    task = texts()
    captured = route(task, dtype=torch.float64)
    captured.captures = True
    jobs = [several(task)] * 2
    jobs[1] = job_for(task, models=jobs[0].models[::-1].copy(), start=jobs[0].start, mu=jobs[0].mu)
    for job in (*jobs, jobs[0]):
        assert worst(captured.train(job), oracle(task, job, "sgd")) < 1e-6
    assert len(captured._captured) == 1


def test_a_stack_has_room_for_as_many_as_its_trained_numbers_allow() -> None:
    """Of Sent140's LSTM a client's frozen table is twenty times what it trains."""
    task, memory = texts("lstm(3,1,2,vocabulary=500,width=5)"), 100_000
    job = several(task, batch_size=np.full(6, 2))
    assert len(route(task, options=StackedOptions(), memory=memory).chunks(job)) > 1
    found = route(task, memory=memory)
    assert len(found.chunks(job, "sgd", found._concat_tables(job)[0])) == 1


def test_tables_that_nearly_all_differ_are_stacked_as_before() -> None:
    task = texts()
    job = job_for(task, models=np.stack([task.model.initial(seed)() for seed in range(6)]), start=np.arange(6))
    found = route(task, memory=4 * 5 * (4 * WORDS * 5))  # a fourth of it is five tables
    assert found._concat_tables(job) == (found.shared, None)
    assert worst(found.train(job), oracle(task, job, "sgd")) < 1e-4


def test_only_frozen_tables_that_a_module_reads_tokens_in_are_shared() -> None:
    def table(module: torch.nn.Module, task: World) -> Any:
        return find_lookup_table(module, task.model.layout)

    frozen, trained = texts(), texts(f"lstm(3,1,2,vocabulary={WORDS},width=5,train_embeddings=true)")
    assert table(frozen.model.module(), frozen).name == "embedding.table"
    assert isinstance(trained.model.module(), Recurrent)
    assert table(trained.model.module(), trained) is None
    assert route(frozen, options=StackedOptions()).lookup is None
    for device, shares in [("cpu", False), ("cuda", True)]:
        assert choose_stacked_options(frozen, torch.device(device)).shares_tables is shares
        assert not choose_stacked_options(frozen, torch.device(device), exact=True).shares_tables


def test_rows_are_told_apart_by_every_bit() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    given: Floats = rows[[1, 0, 1, 2, 0, 1]].copy()
    given[5] = given[5][::-1]  # the same sum of bits
    given[3, 0] = np.nan
    which, firsts = find_distinct_rows(torch.from_numpy(given))
    assert which.tolist() == [0, 1, 0, 2, 1, 3]
    assert firsts.tolist() == [0, 1, 3, 5]
