"""Records written by hand: accuracies that a test asks for, without a study behind them."""

from math import nan

import numpy as np

from coterie.analysis.records import COSTS, Records
from coterie.core.arrays import Array
from coterie.core.plan import Plan
from coterie.evidence import Evidence
from coterie.evidence.folder import MemorySource
from coterie.evidence.records import LaneEnd
from coterie.evidence.settings import Settings

AVG, UNIFORM, ALONE = "fedavg", "fedavg(weighting=uniform)", "local"
GROUP, RANDOM, ORACLE = "fedgroup(groups=2)", "fedgroup(groups=2,assign=random)", "fedgroup(groups=2,assign=oracle)"
SIM, SIM_RANDOM = "fedsim(clusters=2)", "fedsim(clusters=2,assign=random)"


def by_hand(
    right: dict[str, Array],
    groups: dict[str, Array] | None = None,
    validation: Array | None = None,
    stopped: dict[tuple[str, int], LaneEnd] | None = None,
) -> Records:
    """Records of clients with 100 test samples each, from (seeds, rounds + 1, clients) right answers for each method; -1: not measured."""
    cube = np.stack([np.asarray(values) for values in right.values()])
    m, s, t, n = cube.shape
    ones = np.broadcast_to(np.arange(m)[:, None, None] + 1.0, (m, s, t))  # method i pays i + 1 of everything a round
    settings = Settings(methods=tuple(right), data="by hand", seeds=tuple(range(s)), plan=Plan(rounds=t - 1))
    return Records(
        settings=settings,
        ids=tuple(f"client-{i}" for i in range(n)),
        train=np.full(n, 10),
        test=np.full(n, 100),
        tested=np.full((t, n), 100),
        truth=np.arange(n) % 2,
        rounds=np.arange(t),
        credits=cube,
        loss=np.zeros((m, s, t)),
        auroc=None,
        validation=np.full((m, s, t), nan) if validation is None else validation,
        costs=dict.fromkeys(COSTS, ones),
        discrepancy=ones,
        server_seconds=ones,
        groups=groups or {},
        clusters={},
        silhouette=np.full((m, s), nan),
        stopped=stopped or {},
        faults=(),
        evidence=Evidence(settings, {}, MemorySource({})),
    )


def flat(points: float, seeds: int = 6, rounds: int = 2, clients: int = 4) -> Array:
    """The same right answers everywhere, but for a fixed spread over seeds."""
    return np.full((seeds, rounds + 1, clients), points) + np.arange(seeds)[:, None, None] % 3
