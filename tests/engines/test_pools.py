"""Worlds that share a model train by a rule in one stack, and every draw is answered as it is alone."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines import pools
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.pools import pool_worlds
from coterie.engines.rule_jobs import RuleJob, RuleResult
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.world import World
from coterie.methods.moon import PREVIOUS_MODEL, MOONRule
from coterie.testing import worlds

LOCAL = Local(epochs=2, batch_size=4, lr=0.1, rule=MOONRule(mu=1.0, temperature=0.5))
DRAWS = {draw: World.from_spec(worlds.make_federation(sizes), "mlp(4)") for draw, sizes in enumerate([(5, 9, 1), (12, 2, 6, 3), (7, 4)])}


def make_ask(draw: int, seed: int, *, terms: bool = False) -> StampedAsk:
    rng = np.random.default_rng(10 * draw + seed)
    n, d = len(DRAWS[draw].federation.train), DRAWS[draw].model.layout.size
    start, previous, linear = (rng.normal(scale=0.3, size=(n, d)).astype(np.float32) for _ in range(3))
    ask = Train(np.arange(n), start, LOCAL, start=np.arange(n), extra={PREVIOUS_MODEL: previous})
    if terms:
        ask = replace(ask, linear=linear, anchors=previous, mus=np.full(n, 0.5))
    return StampedAsk(ask, seed, 1, draw=draw)


def test_each_draw_is_answered_as_in_the_loop_and_all_of_them_in_one_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [make_ask(draw, seed, terms=draw == 1) for seed in range(2) for draw in DRAWS]  # worlds take turns
    jobs, train = list[RuleJob](), StackedTrainer.train_by_rule

    def record(self: StackedTrainer, whole: RuleJob) -> RuleResult:
        jobs.append(whole)
        return train(self, whole)

    monkeypatch.setattr(StackedTrainer, "train_by_rule", record)
    with BatchedEngine(DRAWS, threads=1) as engine, LoopEngine(DRAWS) as loop:
        engine.prepare(LOCAL)
        del jobs[:]
        found, expected = engine.run(asks), loop.run(asks)
    assert len(jobs) == 1
    for mine, own in zip(found, expected, strict=True):
        for name in ("clients", *own.columns()):
            np.testing.assert_allclose(getattr(mine, name), getattr(own, name), atol=1e-5, err_msg=name)


def test_worlds_of_other_models_or_too_many_samples_are_in_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    other = World.from_spec(DRAWS[0].federation, "mclr")
    assert set(pool_worlds([*DRAWS.values(), other])) == set(DRAWS.values())
    monkeypatch.setattr(pools, "POOLED_BYTES", 100)
    assert pool_worlds(DRAWS.values()) == {}


def test_samples_that_worlds_share_are_there_once() -> None:
    twin = World.from_spec(DRAWS[0].federation, "mlp(4)")
    pool = pool_worlds([DRAWS[0], DRAWS[1], twin])[twin]
    assert pool.firsts == {DRAWS[0]: 0, DRAWS[1]: len(DRAWS[0].federation.x), twin: 0}
    assert len(pool.world.federation.x) == len(DRAWS[0].federation.x) + len(DRAWS[1].federation.x)
