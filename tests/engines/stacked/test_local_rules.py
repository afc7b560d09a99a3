"""Trainings by a local rule: the stacked route against the loop on random ragged jobs, with several loops and other optimisers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.arrays import Floats
from coterie.core.asks import Train
from coterie.core.local import MODEL, Local, LocalRule, Step
from coterie.core.model import read_vector
from coterie.engines.batched import BatchedEngine
from coterie.engines.client_training import ClientTraining, VisitResult, train_client
from coterie.engines.engine import StampedAsk
from coterie.engines.jobs import TrainingJob
from coterie.engines.loop import LoopEngine
from coterie.engines.routes import choose_route
from coterie.engines.rule_jobs import RuleJob, RuleResult
from coterie.engines.workspace import Workspace
from coterie.engines.world import World
from coterie.methods.ditto import OWN_MODEL, DittoRule
from coterie.methods.moon import PREVIOUS_MODEL, MOONRule
from coterie.methods.reporting_rules import LossRule, MixtureRule
from coterie.testing import worlds
from engines.stacked.stacked_oracle import Smooth, job_for, noise_world, oracle, route, worst

SMALL = 40_000  # bytes: stacks of a few trainings


@dataclass(frozen=True, kw_only=True)
class Plain(LocalRule):
    """The study's loss and nothing else."""

    def objective(self, step: Step) -> Tensor:
        return step.loss(step.outputs())


@dataclass(frozen=True, kw_only=True)
class Decoupled(Plain):
    """With an optimiser that no setting names."""

    def optimizer(self, weights: list[Tensor], local: Local) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, lr=local.lr / 10, weight_decay=0.1)


class ClippedSgd(torch.optim.SGD):
    """Scales the gradient to length one: a number's step hangs on all the others'."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.01)
        return super().step(closure)


@dataclass(frozen=True, kw_only=True)
class Clipped(Plain):
    def optimizer(self, weights: list[Tensor], local: Local) -> torch.optim.Optimizer:
        return ClippedSgd(weights, lr=local.lr)


@dataclass(frozen=True, kw_only=True)
class PartOnly(LocalRule):
    """Only the output layer is reached by the loss of the second loop."""

    loops = ("second", MODEL)

    def objective(self, step: Step) -> Tensor:
        if step.loop == MODEL:
            return step.loss(step.outputs())
        return sum((step.weights[name] ** 2).sum() for name in list(step.trained)[-2:]) * step.mean(torch.ones_like(step.x[:, 0]))


RULES: dict[str, LocalRule] = {
    "contrast": MOONRule(mu=1.5, temperature=0.5),
    "beside": DittoRule(lam=0.7, own_epochs=3),
    "decoupled": Decoupled(),
    "part": PartOnly(),
    "losses": LossRule(first=3, last=True),
    "mixture": MixtureRule(components=3),
    "by class": MixtureRule(components=2, classes=3),
    "E-step": MixtureRule(components=2, trains=False),
}


@st.composite
def rule_jobs(draw: st.DrawFn) -> tuple[World, RuleJob, int]:
    """A ragged job of one rule and one setting of local training; its epochs, terms and extra vectors differ from client to client."""
    sizes = draw(st.lists(st.integers(1, 12) | st.sampled_from([1, 40]), min_size=1, max_size=5))
    world, n = noise_world(Smooth(), (6,), sizes, draw(st.integers(0, 99))), len(sizes)
    rule = RULES[draw(st.sampled_from(sorted(RULES)))]
    local = Local(
        lr=draw(st.floats(0.001, 0.1)),
        batch_size=draw(st.integers(1, 45)),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.01])),
        optimizer=draw(st.sampled_from(["sgd", "sgd", "adam"])),
        max_steps=draw(st.sampled_from([None, None, 1, 5])),
        rule=rule,
    )
    noise = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(3, n, world.model.layout.size)).astype(np.float32) * 0.1
    job = job_for(
        world,
        epochs=np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))),
        max_steps=np.full(n, local.max_steps or -1),
        batch_size=np.full(n, local.batch_size),
        lr=np.full(n, local.lr),
        momentum=np.full(n, local.momentum),
        weight_decay=np.full(n, local.weight_decay),
        mu=np.array(draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))),
        linear=noise[0] if draw(st.booleans()) else None,
    )
    extra = {name: noise[1 + place % 2] for place, name in enumerate(rule.needs)}
    extra |= {name: np.abs(noise[0, :, :length]) + 0.1 for name, length in rule.numbers.items()}
    return world, RuleJob(job, rule, local, extra), draw(st.sampled_from([1, SMALL, 1 << 30]))


def by_loop(world: World, whole: RuleJob) -> RuleResult:
    """The same trainings, one by one and in float64."""
    space, job = Workspace(world, torch.device("cpu"), torch.float64), whole.job
    vectors, results = list[Floats](), list[VisitResult]()
    for i, row in enumerate(job.start):
        start = space.to_tensor(job.models[row])
        visit = ClientTraining(
            samples=job.indices[job.offsets[i] : job.offsets[i + 1]],
            key=int(job.keys[i]),
            start=start,
            epochs=int(job.epochs[i]),
            mu=float(job.mu[i]),
            anchor=start,
            linear=None if job.linear is None else space.to_tensor(job.linear[i]),
            extra={name: space.to_tensor(rows[i]) for name, rows in whole.extra.items()},
        )
        results.append(train_client(space, visit, whole.local))
        vectors.append(read_vector(space.module))
    more = [[vector.to(torch.float32).numpy() for vector in result.further] for result in results]
    further = np.array(more, np.float32).reshape(len(more), len(whole.rule.loops) - 1, job.models.shape[1])
    losses, summary = np.stack([result.losses for result in results]), np.stack([result.summary for result in results])
    return RuleResult(np.stack(vectors), np.array([result.steps for result in results]), further, losses, summary)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rule_jobs())
def test_agrees_with_the_loop_on_random_jobs(case: tuple[World, RuleJob, int]) -> None:
    world, whole, memory = case
    found, expected = route(world, memory, dtype=torch.float64).train_by_rule(whole), by_loop(world, whole)
    assert worst(found[:2], expected[:2]) < 1e-5
    for name in ("more", "losses", "summary"):
        assert getattr(found, name).shape == getattr(expected, name).shape
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5)


def plain_job(world: World, **settings: Any) -> tuple[TrainingJob, Local]:
    return job_for(world, **settings), Local(batch_size=4, lr=0.1, rule=Plain())


def test_a_rule_of_the_loss_alone_is_plain_training() -> None:
    world = noise_world(Smooth(), (6,), [9, 1, 4, 23])
    job, local = plain_job(world, mu=np.array([0, 0.5, 0, 1.0]))
    found = route(world).train_by_rule(RuleJob(job, Plain(), local, {}))
    assert found.more.shape[1] == found.losses.shape[1] == found.summary.shape[1] == 0
    assert worst(found[:2], oracle(world, job)) < 1e-5
    assert worst(by_loop(world, RuleJob(job, Plain(), local, {}))[:2], oracle(world, job)) < 1e-7


def test_models_that_are_only_looked_at_do_not_move() -> None:
    """Batch norm's statistics are those of the model that is trained; looking at another model leaves both as they are."""
    world = worlds.make_batch_norm_world()
    job = job_for(world, batch_size=np.full(4, 12))
    local = Local(batch_size=12, lr=0.1, rule=MOONRule(mu=0.0, temperature=1.0))
    extra = {PREVIOUS_MODEL: job.models[job.start] + 1}
    seen = by_loop(world, RuleJob(job, local.rule, local, extra)).vectors  # type: ignore[arg-type]
    twice = by_loop(world, RuleJob(job, Plain(), local.replace(rule=Plain()), {})).vectors
    weights = [s for s in world.model.layout.slices if s.kind == "weight"]
    for s in weights:
        np.testing.assert_allclose(seen[:, s.begin : s.end], twice[:, s.begin : s.end], atol=1e-6)


def test_the_route_of_a_rule_is_decided_by_its_numbers() -> None:
    world, device = noise_world(Smooth(), (6,), [9, 4, 6]), torch.device("cpu")
    for rule in RULES.values():
        assert choose_route(world, Local(rule=rule), device).name == "stacked", rule
    clipped = choose_route(world, Local(rule=Clipped()), device)
    assert clipped.name == "loop"
    assert "differ" in clipped.why
    assert choose_route(worlds.make_batch_norm_world(), Local(rule=Plain()), device).name == "loop"


def test_a_loop_starts_where_the_ask_says() -> None:
    """Without a step the client's own model is the one it brought along, and the model's loop returns the one received."""
    world = noise_world(Smooth(), (6,), [3, 5])
    job = job_for(world, epochs=np.zeros(2, np.int64))
    own = np.random.default_rng(0).normal(size=(2, world.model.layout.size)).astype(np.float32)
    rule = DittoRule(lam=1.0, own_epochs=None)
    whole = RuleJob(job, rule, Local(rule=rule), {OWN_MODEL: own})
    for found in (route(world).train_by_rule(whole), by_loop(world, whole)):
        assert found.steps.tolist() == [0, 0]
        np.testing.assert_array_equal(found.vectors, job.models[job.start])
        np.testing.assert_array_equal(found.more[:, 0], own)


@pytest.mark.parametrize("memory", [1, SMALL])
def test_chunks_change_nothing(memory: int) -> None:
    world = noise_world(Smooth(), (6,), [9, 1, 4, 23, 2, 8])
    job, local = plain_job(world)
    whole = RuleJob(job, Plain(), local, {})
    np.testing.assert_allclose(route(world, memory).train_by_rule(whole)[0], route(world).train_by_rule(whole)[0], atol=1e-6)


def test_rules_that_differ_in_a_number_are_not_put_into_one_job() -> None:
    world = worlds.make_world("mlp(4)")
    clients, start = np.arange(len(world.federation)), world.model.initial(0)()
    own = np.repeat(start[None], len(clients), axis=0)
    asks = [
        StampedAsk(Train(clients, start, Local(rule=DittoRule(lam=lam, own_epochs=2)), extra={OWN_MODEL: own}), 0, 1) for lam in (0.1, 5.0)
    ]
    with BatchedEngine(world) as engine, LoopEngine(world) as loop:
        together, alone, expected = engine.run(asks), [engine.run([ask])[0] for ask in asks], loop.run(asks)
    for a, b, c in zip(together, alone, expected, strict=True):
        np.testing.assert_array_equal(a.more, b.more)
        np.testing.assert_allclose(a.more, c.more, atol=1e-5)
    assert np.abs(together[0].more - together[1].more).max() > 1e-3
