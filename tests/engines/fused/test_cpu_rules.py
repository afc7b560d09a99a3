"""Local rules on the fused route of a CPU: against the float64 loop on random ragged asks, and the same bits whatever else is asked."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.rule_jobs import has_kernels
from coterie.engines.world import World
from coterie.methods.ditto import OWN_MODEL, DittoRule
from coterie.methods.moon import MOONRule
from coterie.methods.reporting_rules import LossRule, MixtureRule
from coterie.testing import worlds

SIZES = (1, 13, 70, 4, 9, 1, 26)
FEDERATION = worlds.make_federation(SIZES)
WORLDS = {model: World.from_spec(FEDERATION, model) for model in ("mclr", "mlp(5)", "mlp(6,4)")}
LOCALS = {
    "short batches": Local(epochs=2, batch_size=4, lr=0.3),
    "full batches": Local(epochs=2, batch_size=None, lr=0.5, momentum=0.5),
    "terms": Local(batch_size=5, lr=0.2, mu=0.3, weight_decay=0.01, max_steps=7, momentum=0.9),
}
RULES = ("ditto", "mixture", "mixture by class", "losses")


def make_ask(rule: str, world: World, local: Local, seed: int = 0) -> Train:
    """Clients in random order from random starts, with an anchor and a linear term each."""
    rng = np.random.default_rng(seed)
    clients, d = rng.permutation(len(SIZES))[: rng.integers(3, len(SIZES) + 1)], world.model.layout.size

    def rows(count: int) -> Any:
        return rng.normal(scale=0.4, size=(count, d)).astype(np.float32)

    n, terms = len(clients), {"anchors": rows(len(clients)), "linear": 0.1 * rows(len(clients))}
    given: dict[str, Any] = {"start": rng.integers(2, size=n)} | (terms if local.mu else {})
    if rule == "losses":
        return Train(clients, rows(2), local.replace(rule=LossRule(first=3, last=True)), **given)
    if rule == "ditto":
        ditto = DittoRule(lam=0.7, own_epochs=3)
        return Train(clients, rows(2), local.replace(rule=ditto), extra={OWN_MODEL: rows(n)}, **given)
    mixture, shares = MixtureRule(components=3, classes=3 if "class" in rule else 0), rng.dirichlet(np.ones(3), size=3)
    extra = mixture.bring(rows(3), rng.dirichlet(np.ones(3), size=n), shares if mixture.classes else None)
    return Train(clients, rows(2), local.replace(rule=mixture), extra=extra, **given)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("how", LOCALS)
def test_agrees_with_the_float64_loop_on_random_ragged_asks(rule: str, how: str) -> None:
    for seed, world in enumerate(WORLDS.values()):
        ask = StampedAsk(make_ask(rule, world, LOCALS[how], seed), seed, 1)
        with BatchedEngine(world, threads=2) as engine, LoopEngine(world, dtype=torch.float64) as loop:
            [found], [expected] = engine.run([ask]), loop.run([ask])
            assert set(engine.routes().values()) == {"fused: numba"}
        for name in ("clients", *expected.columns()):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_bits_depend_on_nothing_but_the_ask(rule: str) -> None:
    world = WORLDS["mclr"]
    asks = [StampedAsk(make_ask(rule, world, LOCALS["short batches"], seed), seed, 1) for seed in range(4)]
    with BatchedEngine(world, threads=2) as many, BatchedEngine(world, threads=1) as one:
        together: list[Trained] = many.run(asks)
        for ask, found in zip(asks, together, strict=True):
            [alone] = one.run([ask])
            for name in found.columns():
                assert getattr(found, name).tobytes() == getattr(alone, name).tobytes(), name


def test_a_client_has_the_same_bits_whoever_is_asked_with_it() -> None:
    ask = make_ask("mixture", WORLDS["mclr"], LOCALS["short batches"], 3)
    with BatchedEngine(WORLDS["mclr"], threads=1) as engine:
        [whole] = engine.run([StampedAsk(ask, 0, 1)])
        for i in range(len(ask.clients)):
            [alone] = engine.run([StampedAsk(ask.take(np.arange(len(ask.clients)) == i), 0, 1)])
            for name in whole.columns():
                assert getattr(alone, name).tobytes() == getattr(whole, name)[[i]].tobytes(), name


def test_rules_with_a_loss_or_a_step_of_their_own_have_no_kernels() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Doubled(LossRule):
        def objective(self, step: Any) -> Any:
            return 2 * super().objective(step)

    @dataclass(frozen=True, kw_only=True)
    class Adapted(LossRule):
        def optimizer(self, weights: Any, local: Local) -> torch.optim.Optimizer:
            return torch.optim.Adagrad(weights, lr=local.lr)

    assert has_kernels(LossRule())
    assert not any(has_kernels(rule) for rule in (Doubled(), Adapted(), MOONRule(mu=1.0, temperature=0.5)))


def test_a_pull_to_nowhere_is_plain_training() -> None:
    world, local = WORLDS["mclr"], LOCALS["short batches"]
    ask = make_ask("ditto", world, local)
    free = replace(ask, local=local.replace(rule=DittoRule(lam=0.0, own_epochs=None)))
    with BatchedEngine(world, threads=1) as engine:
        [pulled], [plain] = engine.run([StampedAsk(free, 0, 1)]), engine.run([StampedAsk(replace(ask, local=local, extra={}), 0, 1)])
    assert pulled.vectors.tobytes() == plain.vectors.tobytes()
